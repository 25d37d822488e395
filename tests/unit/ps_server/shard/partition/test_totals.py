"""Totals of cells are what a look at each ledger and clock would give, in one pass over each cell."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_server.shard.partition.inputs import Ledger
from ps_server.shard.partition.totals import Totals

LARGEST = {"max_gap", "gate_wait_s"}
ledgers = st.builds(Ledger, **{field.name: st.integers(0, 9) for field in fields(Ledger)})
parts = st.lists(st.dictionaries(st.integers(0, 3), ledgers, max_size=4), max_size=5)


@given(parts)
def test_counts_are_sums_and_gaps_and_waits_the_largest(cells):
    totals = Totals()
    for cell in cells:
        totals.add_ledgers(cell)
    for worker in range(4):
        mine = [cell[worker] for cell in cells if worker in cell]
        for field in fields(Ledger):
            values = [getattr(ledger, field.name) for ledger in mine]
            expected = max(values, default=0) if field.name in LARGEST else sum(values)
            assert getattr(totals.ledger(worker), field.name) == expected, field.name


def test_ledgers_of_cells_stay_what_they_are():
    mine = Ledger(received=1)
    totals = Totals()
    totals.add_ledgers({0: mine})
    totals.add_ledgers({0: mine})
    assert (mine.received, totals.ledger(0).received) == (1, 2)


@given(st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 9), max_size=4), max_size=5))
def test_clocks_are_the_extremes_over_partitions(cells):
    totals = Totals()
    for cell in cells:
        totals.add_clocks(cell.items())
    for worker in range(4):
        mine = [cell[worker] for cell in cells if worker in cell]
        assert totals.lowest.get(worker) == min(mine, default=None)
        assert totals.highest.get(worker) == max(mine, default=None)


@pytest.mark.parametrize(("versions", "extremes"), [([], (0, 0)), ([5], (5, 5)), ([7, 3, 9], (3, 9))])
def test_versions_are_the_oldest_and_the_newest(versions, extremes):
    totals = Totals()
    for version in versions:
        totals.add_version(version)
    assert (totals.oldest, totals.newest) == extremes
    assert totals.partitions == len(versions)
