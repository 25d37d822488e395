"""The table of columns in docs/script.md is that of the code."""

from __future__ import annotations

from ps_worker.recording.columns import COLUMNS

from .pages import table as rows_of


def test_the_columns_of_a_record_are_those_of_the_page():
    rows = rows_of("docs/script.md", "column", "unit", "meaning")
    assert [tuple(row) for row in rows] == [(f"`{it.name}`", it.unit, it.meaning) for it in COLUMNS]
