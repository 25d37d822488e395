"""One of a few words, as a person types it."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from ps_wire.errors import UsageError

Choice = TypeVar("Choice", bound=StrEnum)


def choose(kind: type[Choice], text: str, name: str, *, valid: str = "") -> Choice:
    """The choice that `text` names.

    Args:
        kind: all choices.
        text: as it was typed; spaces around it do not matter.
        name: of the setting.
        valid: what else than all of `kind` may be typed there.

    Raises:
        UsageError: it names none; the valid ones are listed.
    """
    try:
        return kind(text.strip())
    except ValueError:
        words = valid or ", ".join(kind)
        raise UsageError(f"unknown {name} {text!r}; valid are: {words}", spec=text) from None
