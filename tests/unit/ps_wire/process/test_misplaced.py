"""Options that stand behind the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from ps_wire.process.misplaced import hint

OPTIONS = {"--job", "--num-workers", "-m"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), ""),
        (("--epochs", "3", "job"), ""),
        (("--job", "a"), "--job stands behind {}, so the script gets it: options of ps-x come before it"),
        (("--num-workers=2", "--job", "a", "--job", "b"), "--num-workers, --job stand behind {}, so"),
    ],
)
def test_options_of_the_command_behind_the_script_are_named(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text('parser.add_argument("--epochs")\n')
    found = hint("ps-x", OPTIONS, script, arguments)
    assert found.startswith(said.format(script)) if said else not found


def test_a_script_that_has_the_option_itself_gets_it_without_a_word(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text('parser.add_argument("--job")\n')
    assert hint("ps-x", OPTIONS, script, ("--job", "a")) == ""
