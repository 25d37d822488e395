"""docs/compatibility.md: every row names tests, and these exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from .pages import ROOT, table

PAGE = "docs/compatibility.md"
HEADER = ("case", "what happens", "test")
NAMED = re.compile(r"`(tests/[\w/]+/test_\w+\.py)::(test_\w+)`")


@cache
def functions_of(path: Path) -> frozenset[str]:
    """Names of the test functions of a file; none if there is no such file."""
    if not path.exists():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, functions) and node.name.startswith("test_")
    )


def fault_of(row: Sequence[str]) -> str | None:
    """What is wrong with a row, or None."""
    if len(row) != len(HEADER) or not all(row):
        return "it has not three cells with text"
    named = NAMED.findall(row[2])
    if not named or NAMED.sub("", row[2]).strip(", "):
        return "the third cell is not a list of `path::name`"
    missing = [f"{path}::{name}" for path, name in named if name not in functions_of(ROOT / path)]
    return f"there is no {missing[0]}" if missing else None


ROWS = table(PAGE, *HEADER)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_row_names_tests_that_exist(row):
    """Parametrized ones by the name of their function."""
    assert fault_of(row) is None


def test_no_row_stands_outside_these_tables():
    """Under another header a row would not be looked at."""
    lines = [line for line in (ROOT / PAGE).read_text().splitlines() if line.startswith("|")]
    headers = [line for line in lines if line == f"| {' | '.join(HEADER)} |"]
    assert len(lines) == len(ROWS) + 2 * len(headers)


def test_no_case_comes_twice():
    """What happens to it is said in one place."""
    cases = [row[0] for row in ROWS]
    assert len(set(cases)) == len(cases)


MINE = "`tests/unit/docs/test_compatibility.py::test_no_case_comes_twice`"


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (["a case", "Equal", MINE], None),
        (["a case", "Equal", f"{MINE}, {MINE}"], None),
        (["a case", "Equal", ""], "three cells"),
        (["a case", "Equal"], "three cells"),
        (["a case", "", MINE], "three cells"),
        (["a case", "Equal", "none yet"], "not a list"),
        (["a case", "Equal", f"{MINE} and by hand"], "not a list"),
        (["a case", "Equal", MINE.replace("no_case", "some_case")], "there is no .*::test_some_case"),
        (["a case", "Equal", MINE.replace("docs/", "doc/")], "there is no tests/unit/doc/"),
        (["a case", "Equal", f"{MINE}, {MINE.replace('twice', 'thrice')}"], "there is no .*thrice"),
        (["a case", "Equal", "`tests/unit/docs/test_compatibility.py::fault_of`"], "not a list"),
    ],
)
def test_a_row_without_a_test_is_found(row, fault):
    """The check of the check."""
    found = fault_of(row)
    assert found is None if fault is None else re.search(fault, found)
