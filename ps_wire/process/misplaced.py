"""Options that a person has typed behind the script: the script gets them, and the person does not know."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path


def hint(program: str, options: Collection[str], script: Path, arguments: Sequence[str]) -> str:
    """A line about the program's options that stand behind a script which does not name them; else empty.

    Args:
        program: its name, for people.
        options: that come before the script.
        script: a file.
        arguments: of the script.
    """
    text = script.read_text(errors="replace")
    given = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    strange = list(dict.fromkeys(name for name in given if name in options and name not in text))
    if not strange:
        return ""
    stands = "stands" if len(strange) == 1 else "stand"
    return (
        f"{', '.join(strange)} {stands} behind {script}, so the script gets it: options of {program} come "
        "before it"
    )
