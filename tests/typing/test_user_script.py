"""The public API is typed: a user's script passes `mypy --strict`, and wrong uses of it are reported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ps_wire
import ps_worker
from tests.until import LIMIT_S

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCRIPT, WRONG = HERE / "user_script.py", HERE / "wrong_uses.py"
TORCHS = 'Call to untyped function "backward"'  # of a tensor


MYPY_LIMIT_S = 3 * LIMIT_S  # it takes 20 s of a core where it has no cache


def said() -> dict[str, dict[int, str]]:
    """What mypy reports: file -> line -> error. With the project's options it has read torch already."""
    command = (sys.executable, "-m", "mypy", "--strict", *map(str, (SCRIPT, WRONG)))
    outcome = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=MYPY_LIMIT_S, check=False
    )
    assert outcome.returncode in (0, 1), outcome.stdout + outcome.stderr
    files: dict[str, dict[int, str]] = {}
    for file, line, text in re.findall(r"^\S*?(\w+\.py):(\d+): error: (.*)$", outcome.stdout, re.MULTILINE):
        if not text.startswith(TORCHS):
            files.setdefault(file, {}).setdefault(int(line), text)
    return files


@pytest.mark.timeout(MYPY_LIMIT_S + 20)
def test_a_users_script_has_no_error_and_every_wrong_use_is_reported():
    """Nothing of ours that it uses is Any by accident: `assert_type` would report it.

    The wrong uses are there so that this can fail.
    """
    found = said()
    assert SCRIPT.name not in found
    assert "assert_type(" in SCRIPT.read_text()
    lines = WRONG.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, start=1) if "# wrong" in line}
    assert found[WRONG.name].keys() == marked


@pytest.mark.parametrize("package", [ps_worker, ps_wire], ids=lambda package: package.__name__)
def test_the_packages_say_that_they_are_typed(package):
    """Without this file mypy reads an installed package as Any."""
    assert Path(package.__file__).with_name("py.typed").exists()
