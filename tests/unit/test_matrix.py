"""The matrix of Pythons and releases of torch, without installing anything."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests import matrix


def test_it_begins_with_the_lowest_python_and_torch_that_are_supported() -> None:
    project = tomllib.loads((matrix.ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={matrix.PYTHONS[0]}"
    assert re.fullmatch(r"torch==\d+\.\d+\.\*", matrix.lowest_torch())


def test_its_tests_exist() -> None:
    assert all((matrix.ROOT / path).exists() for path in matrix.TESTS)


def test_a_python_that_is_not_there_is_said_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert matrix.tried("3.11", "torch") == ("not tried: no python3.11 on PATH", True)
