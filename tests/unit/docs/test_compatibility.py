"""docs/compatibility/: every row names tests, and these exist."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from .named_tests import fault_of_cell
from .pages import ROOT, name_of, table

FOLDER = ROOT / "docs" / "compatibility"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")
HEADER = ("case", "what happens", "test")


def fault_of(row: Sequence[str]) -> str | None:
    """What is wrong with a row, or None."""
    if len(row) != len(HEADER) or not all(row):
        return "it has not three cells with text"
    return fault_of_cell(row[2])


ROWS = [row for page in PAGES for row in table(name_of(page), *HEADER)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_row_names_tests_that_exist(row):
    """Parametrized ones by the name of their function."""
    assert fault_of(row) is None


def test_no_row_stands_outside_these_tables():
    """Under another header a row would not be looked at."""
    lines = [line for page in PAGES for line in page.read_text().splitlines() if line.startswith("|")]
    headers = [line for line in lines if line == f"| {' | '.join(HEADER)} |"]
    assert len(lines) == len(ROWS) + 2 * len(headers)


def test_every_topic_is_named_in_the_list():
    """With the title that its page has."""
    listed = table("docs/compatibility/README.md", "topic")
    titles = [f"[{page.read_text().splitlines()[0].removeprefix('# ')}]({page.name})" for page in PAGES]
    assert sorted(row[0] for row in listed) == sorted(titles)


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
