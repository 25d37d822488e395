"""The packages and their API are typed: `mypy --strict` passes them and a script, and reports wrong uses.

It runs once over all of it, since reading torch takes it longer than the rest.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ps_wire
import ps_worker
from tests.until import LIMIT_S

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCRIPT, WRONG = HERE / "user_script.py", HERE / "wrong_uses.py"
TORCHS = 'Call to untyped function "backward"'  # of a tensor
PACKAGES = ("ps_wire", "ps_server", "ps_worker", "ps_lab")  # of `make check`'s mypy

MYPY_LIMIT_S = 2 * LIMIT_S  # it takes 20 s of a core where it has no cache


def said() -> dict[str, dict[int, str]]:
    """What mypy reports: file -> line -> error."""
    command = (sys.executable, "-m", "mypy", "--strict", *PACKAGES, str(SCRIPT), str(WRONG))
    outcome = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=MYPY_LIMIT_S, check=False
    )
    assert outcome.returncode in (0, 1), outcome.stdout + outcome.stderr
    files: dict[str, dict[int, str]] = {}
    for file, line, text in re.findall(r"^(\S+?\.pyi?):(\d+): error: (.*)$", outcome.stdout, re.MULTILINE):
        if not (Path(file).name == SCRIPT.name and text.startswith(TORCHS)):
            files.setdefault(file, {}).setdefault(int(line), text)
    return files


def test_packages_and_a_users_script_have_no_error_and_every_wrong_use_is_reported():
    """Nothing of ours that the script uses is Any by accident: `assert_type` would report it.

    The wrong uses are there so that this can fail.
    """
    found = said()
    wrong = found.pop(str(WRONG.relative_to(ROOT)))
    assert found == {}
    assert "assert_type(" in SCRIPT.read_text()
    lines = WRONG.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, start=1) if "# wrong" in line}
    assert wrong.keys() == marked


def test_mypy_itself_reads_the_same_packages():
    """`make check` runs it without a word about packages."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert options["packages"] == list(PACKAGES)
    assert options["strict"] is True


@pytest.mark.parametrize("package", [ps_worker, ps_wire], ids=lambda package: package.__name__)
def test_the_packages_say_that_they_are_typed(package):
    """Without this file mypy reads an installed package as Any."""
    assert Path(package.__file__).with_name("py.typed").exists()
