"""docs/faults.md: every row names tests, and these exist; and what it says of clocks."""

from __future__ import annotations

import re

import pytest

from .named_tests import fault_of_cell
from .pages import ROOT, table

PAGE = "docs/faults.md"
HEADER = ("fault", "what happens", "how long", "what is lost", "test")
ROWS = table(PAGE, *HEADER)
# These show the time of day to people, or hold certificates by their dates.
TELLS_THE_TIME = {"certificates.py", "event_log.py", "attempt.py"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[1]}"[:60])
def test_every_fault_names_tests_that_exist(row):
    """And says what happens; how long and what is lost may go without saying."""
    assert len(row) == len(HEADER)
    assert row[0]
    assert row[1]
    assert fault_of_cell(row[4]) is None


def test_no_row_stands_outside_these_tables():
    """Under another header a row would not be looked at."""
    lines = [line for line in (ROOT / PAGE).read_text().splitlines() if line.startswith("|")]
    headers = [line for line in lines if line == f"| {' | '.join(HEADER)} |"]
    assert len(lines) == len(ROWS) + 2 * len(headers)


def test_the_time_of_day_decides_nothing():
    """Hosts' clocks differ and jump: whatever is waited for is measured by a monotonic clock."""
    found = {
        path.name
        for package in ("ps_wire", "ps_server", "ps_worker")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(", path.read_text())
    }
    assert "certificates.py" in found
    assert found <= TELLS_THE_TIME
