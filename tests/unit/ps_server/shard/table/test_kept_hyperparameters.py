"""Hyper-parameters that pushes refer to: what is alike is kept once, and what differs is bounded."""

from __future__ import annotations

import pytest

from ps_server.shard.table.kept_hyperparameters import (
    KEPT_HYPERPARAMETERS,
    LEAST_SETS,
    SETS_BYTES,
    KeptHyperparameters,
    most_sets,
    set_bytes,
)
from ps_wire.errors import MemoryLimitExceeded, UsageError
from ps_wire.spec.table import MAX_TEXT, Hyperparameters


def rate(lr: float) -> Hyperparameters:
    return Hyperparameters(((("lr", lr),),))


def test_what_thousands_send_alike_is_kept_once_and_let_go_with_the_last_of_them() -> None:
    """Workers of one schedule, and the ranks of each, are no more than a few steps apart."""
    kept = KeptHyperparameters(LEAST_SETS)
    for step in range(1, 3 * LEAST_SETS):
        for worker in range(20):
            for rank in range(2):
                kept.keep((worker, rank), step, rate(float(step)))
    assert {id(kept.get((worker, 1), step)) for worker in range(20)} == {id(kept.get((0, 0), step))}
    assert kept.get((0, 0), step - KEPT_HYPERPARAMETERS) is None


def test_what_differs_is_refused_by_name_beyond_a_number_and_all_before_stays() -> None:
    """One job's token would fill the memory of all with it: 4 MiB each, of each rank of each worker."""
    kept = KeptHyperparameters(LEAST_SETS)
    for worker in range(LEAST_SETS):
        kept.keep((worker, 0), 1, rate(float(worker)))
    with pytest.raises(MemoryLimitExceeded, match=f"over {LEAST_SETS} hyper-parameters that differ"):
        kept.keep((LEAST_SETS, 0), 1, rate(-1.0))
    assert kept.get((LEAST_SETS, 0), 1) is None
    kept.keep((LEAST_SETS, 0), 1, rate(0.0))  # as worker 0 has sent
    assert [kept.get((worker, 0), 1) for worker in (0, LEAST_SETS - 1)] == [rate(0.0), rate(LEAST_SETS - 1.0)]


def test_one_that_is_sent_again_counts_once() -> None:
    """After a connection that broke all that may be referred to comes again."""
    kept = KeptHyperparameters(2)
    for _ in range(3):
        for number in (1, 2):
            kept.keep((0, 0), number, rate(float(number)))
    kept.keep((0, 0), 1, rate(2.0))
    kept.keep((0, 0), 3, rate(3.0))  # there is room: nothing means the first one any more
    assert kept.get((0, 0), 1) is kept.get((0, 0), 2)


def test_who_has_gone_leaves_room() -> None:
    """Else each worker that has left under another schedule would take it for ever."""
    kept = KeptHyperparameters(1)
    for worker in range(3):
        for rank in range(2):
            kept.keep((worker, rank), 1, rate(float(worker)))
        kept.forget(worker)
        assert kept.get((worker, 1), 1) is None
    kept.keep((7, 0), 1, rate(7.0))
    kept.forget(8)
    assert kept.get((7, 0), 1) == rate(7.0)


def test_what_a_table_keeps_at_most_is_bounded_in_memory_whatever_its_groups() -> None:
    """Small ones are enough for each worker to have a schedule of its own."""
    small, large = rate(0.1), Hyperparameters(rate(0.1).groups * 10_000)
    assert most_sets(small, 1000) == KEPT_HYPERPARAMETERS * 1001
    assert most_sets(small, 65_536) * set_bytes(small) <= SETS_BYTES
    assert most_sets(large, 1000) == SETS_BYTES // set_bytes(large)
    assert most_sets(Hyperparameters(large.groups * 10), 1000) == LEAST_SETS
    assert most_sets(Hyperparameters(()), 1) == LEAST_SETS


@pytest.mark.parametrize("pair", [("lr", "x" * (MAX_TEXT + 1)), ("x" * (MAX_TEXT + 1), 0.1)])
def test_texts_are_short(pair: tuple[str, float | str]) -> None:
    """A later one may be another one, and none is reckoned to be longer."""
    assert Hyperparameters(((("lr", "x" * MAX_TEXT),),))
    with pytest.raises(UsageError, match=f"at most {MAX_TEXT} characters"):
        Hyperparameters(((pair,),))
