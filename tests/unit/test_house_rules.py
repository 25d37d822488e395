"""Rules of the house that a tool can check: imports point one way, types hold, nothing is unpickled."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    beside = Path(sys.executable).with_name(name)
    command = str(beside) if beside.exists() else shutil.which(name)
    assert command is not None, f"{name} is not installed: make test installs it"
    return subprocess.run(
        [command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize(
    "command",
    [("lint-imports",), ("mypy",), ("ruff", "check", "."), ("ruff", "format", "--check", ".")],
    ids=" ".join,
)
def test_the_checkers_are_content(command):
    """Imports point one way, types are strict, style is the house's."""
    outcome = tool(*command)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_nothing_is_unpickled():
    """What crosses a process boundary is never executed."""
    forbidden = (
        r"import pickle",
        r"(?<!safetensors\.)torch\.load\(",
        r"\bdill\b",
        r"cloudpickle",
        r"\beval\(",
    )
    found = [
        (path.name, word)
        for folder in ("ps_wire", "ps_server", "ps_worker", "ps_lab")
        for path in (ROOT / folder).rglob("*.py")
        for word in forbidden
        if re.search(word, path.read_text()) and "v1" not in path.parts
    ]
    assert not found
