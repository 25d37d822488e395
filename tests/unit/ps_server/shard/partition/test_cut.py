"""A cut is exact and never gets stuck: every reachable state of small jobs with a cut is visited.

Workers push each step on all partitions in any order, pull all, and go on when all pulls are answered. At
any time a coordinator holds one partition after the other, fixes c, and arms them one after the other;
anybody may leave at any time. Updates are one-hot: a partition holds the set of (worker, step) applied to it.
"""

from __future__ import annotations

import pytest

from ps_wire.spec.consistency import ASP, BSP, SSP, Consistency
from tests.unit.ps_server.shard.partition.cut_world import KEY, Cell, World, search

SMALL = [(model, 2, 1, 1) for model in (BSP(), SSP(0), SSP(1), SSP(2), ASP())]
LARGER = [(model, 2, 2, 0) for model in (BSP(), SSP(1), ASP())] + [(BSP(), 2, 2, 1), (SSP(1), 3, 1, 0)]


@pytest.mark.parametrize(("model", "workers", "partitions", "leaves"), SMALL + LARGER, ids=str)
def test_a_cut_is_exact_and_nobody_gets_stuck(model: Consistency, workers: int, partitions: int, leaves: int):
    states, kept = search(World.start(model, workers, partitions, 1, leaves))
    assert states > 100
    assert kept > 10


def test_a_cut_that_is_given_up_lets_everything_go_on():
    """In arrival order, a pull behind the push it belongs to; another number's end is not this one's."""
    cell = Cell(ASP(), 2)
    assert cell.cut.hold(KEY) == {0: 0, 1: 0}
    cell.push(1, 0)
    cell.push(0, 0)
    cell.pull(0, 1)
    cell.push(0, 0)  # sent again: counts once
    cell.cut.end((7, 0))
    cell.go_on()
    assert cell.weights == frozenset()
    assert not cell.answered
    cell.cut.end(KEY)
    cell.go_on()
    assert cell.weights == {(0, 0), (1, 0)}
    assert cell.answered == {0}
    assert cell.machine.ledgers[0].duplicates == 0


def test_without_members_what_is_there_is_sent_at_once():
    cell = Cell(BSP(), 1)
    cell.push(0, 0)
    cell.leave(0)
    assert cell.cut.hold(KEY) == {}
    cell.cut.arm(KEY, {})
    cell.go_on()
    assert cell.sent == {(0, 0)}


def test_a_duplicate_is_acknowledged_during_a_hold():
    cell = Cell(SSP(1), 1)
    cell.push(0, 0)
    cell.cut.hold(KEY)
    cell.push(0, 0)
    assert cell.machine.ledgers[0].duplicates == 1
