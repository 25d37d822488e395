"""Calls that all workers make together, as the coordinator matches and computes them."""

from __future__ import annotations

import json
import math

import pytest

from ps_server.coordinator.jobs.collectives import (
    ABSENT,
    MAX_BLOB_BYTES,
    MAX_KEPT,
    MAX_KEPT_OF_START,
    MAX_VALUES,
    Collectives,
    Part,
)
from ps_wire.errors import FrameMalformed, JobMismatch, JobUnknown
from tests.unit.ps_server.desk import Desk

ALL = {0: 1, 1: 1, 2: 1}


def mean(*values: float, begun: bool = True) -> Part:
    return Part(form="all_reduce(op='mean') of 'x'", op="mean", values=values, begun=begun)


def test_a_call_is_complete_when_all_have_made_it_and_computed_in_their_order():
    calls = Collectives()
    for worker, value in ((2, 1e-16), (0, 1.0), (1, -1.0)):
        assert calls.settle(0, ALL) is None
        calls.bring(0, worker, 1, mean(value, value))
    made = calls.settle(0, ALL)
    assert made.values == ((1.0 + -1.0 + 1e-16) / 3,) * 2
    assert calls.settle(0, ALL) is made


@pytest.mark.parametrize(("op", "expected"), [("mean", 2.0), ("sum", 6.0), ("min", -1.0), ("max", 5.0)])
def test_numbers_are_reduced_and_nan_of_one_is_nan_for_all(op, expected):
    calls = Collectives()
    for worker, value in enumerate((2.0, 5.0, -1.0)):
        others = math.nan if worker == 1 else 1.0
        calls.bring(0, worker, 1, Part(form="reduce", op=op, values=(value, others)))
    value, not_a_number = calls.settle(0, ALL).values
    assert value == expected
    assert math.isnan(not_a_number)


def test_a_worker_that_goes_is_not_waited_for_and_its_value_does_not_count():
    calls = Collectives()
    calls.bring(0, 0, 1, mean(2.0))
    calls.bring(0, 1, 1, mean(100.0))
    assert calls.missing(0, ALL) == [2]
    assert calls.settle(0, ALL) is None
    assert calls.settle(0, {0: 1}).values == (2.0,)


def test_a_value_of_an_incarnation_that_is_over_does_not_count():
    calls = Collectives()
    calls.bring(0, 0, 1, mean(2.0))
    calls.bring(0, 1, 1, mean(100.0))
    assert calls.settle(0, {0: 1, 1: 2}) is None
    calls.bring(0, 1, 2, mean(4.0))
    assert calls.settle(0, {0: 1, 1: 2}).values == (3.0,)


def test_one_who_is_to_come_is_waited_for():
    calls = Collectives()
    calls.bring(0, 0, 1, mean(2.0))
    assert calls.settle(0, {0: 1, 1: ABSENT}) is None


def test_one_who_stands_beyond_a_call_is_not_waited_for():
    """Workers that went back to a snapshot need not stand at the same call, under ssp and asp."""
    calls = Collectives()
    calls.bring(4, 0, 1, mean(2.0))
    assert calls.settle(4, {0: 1, 1: 1}) is None
    calls.stands(1, 1, 5)
    assert calls.settle(4, {0: 1, 1: 1}).values == (2.0,)


def test_a_call_that_is_made_again_gets_what_it_got_as_long_as_that_is_kept():
    calls = Collectives()
    for number in range(MAX_KEPT + 3):
        calls.bring(number, 0, 1, mean(float(number)))
        calls.settle(number, {0: 1})
    assert calls.outcome(2) is None
    assert calls.outcome(3).values == (3.0,)
    assert calls.next_open == MAX_KEPT + 3


@pytest.mark.parametrize(("begun", "waited"), [(True, True), (False, False)])
def test_who_makes_a_call_behind_the_others_is_waited_for_in_the_next(begun, waited):
    """One that joined in mid-run would else never take part: it comes to each call when that is complete."""
    calls = Collectives()
    calls.bring(0, 0, 1, mean(2.0, begun=begun))
    calls.settle(0, {0: 1})
    assert calls.repeat(0, 1, 3).values == (2.0,)
    assert calls.takes_part(1, 3) is waited
    assert calls.missing(1, {0: 1, 1: 3}) == [0, 1]
    assert calls.repeat(1, 1, 3) is None


def test_calls_of_before_the_first_step_are_kept_for_good_also_over_a_rollback():
    calls = Collectives()
    for number in range(MAX_KEPT_OF_START + MAX_KEPT + 9):
        calls.bring(number, 0, 1, mean(float(number), begun=number >= 3))
        calls.settle(number, {0: 1})
    calls.roll_back()
    assert [calls.outcome(number) is not None for number in range(5)] == [True] * 3 + [False] * 2
    calls.clear()
    assert calls.outcome(0) is None


def test_different_calls_are_refused_by_name_on_all():
    calls = Collectives()
    calls.bring(7, 0, 1, mean(1.0))
    calls.bring(7, 1, 1, Part(form="barrier()"))
    made = calls.settle(7, {0: 1, 1: 1})
    with pytest.raises(JobMismatch, match=r"call 7 .*worker 0 makes all_reduce.*worker 1 makes barrier\(\)"):
        made.check(7, mean(1.0))


def test_one_who_makes_another_call_than_the_others_have_made_is_refused():
    calls = Collectives()
    calls.bring(0, 0, 1, mean(1.0))
    made = calls.settle(0, {0: 1})
    with pytest.raises(JobMismatch, match="the others have made all_reduce"):
        made.check(0, Part(form="barrier()"))


def test_a_broadcast_gives_the_value_of_its_source_or_says_that_it_is_gone():
    calls = Collectives()
    for number, awaited in enumerate(({0: 1, 1: 1}, {1: 1})):
        calls.bring(number, 0, 1, Part(form="broadcast", op="broadcast", source=0, blob=b"7"))
        calls.bring(number, 1, 1, Part(form="broadcast", op="broadcast", source=0))
        made = calls.settle(number, awaited)
        if number == 0:
            assert made.blob == b"7"
        else:
            assert isinstance(made.error, JobUnknown)


def test_a_worker_waits_in_one_call_at_a_time():
    calls = Collectives()
    for number in range(100):
        calls.bring(number, 0, 1, mean(1.0))
    assert calls.next_open == 99
    with pytest.raises(FrameMalformed):
        calls.bring(1 << 40, 0, 1, mean(1.0))


@pytest.mark.parametrize(
    "given",
    [
        {"op": "prod"},
        {"values": (0.0,) * (MAX_VALUES + 1)},
        {"blob": b" " * (MAX_BLOB_BYTES + 1)},
        {"form": "x" * 5000},
    ],
)
def test_what_a_worker_brings_is_bounded(given):
    with pytest.raises(FrameMalformed):
        Part(**{"form": "x", **given})


def test_a_successor_goes_on_with_what_was_made():
    calls, successor = Collectives(), Collectives()
    calls.bring(0, 0, 1, mean(math.nan, math.inf))
    calls.settle(0, {0: 1})
    calls.bring(1, 0, 1, Part(form="broadcast", op="broadcast", source=3))
    calls.settle(1, {0: 1})
    successor.load(json.loads(json.dumps(calls.dump(), allow_nan=False)))
    assert math.isnan(successor.outcome(0).values[0])
    assert successor.outcome(0).values[1] == math.inf
    with pytest.raises(JobUnknown):
        successor.outcome(1).check(1, Part(form="broadcast"))
    assert successor.takes_part(0, 1)
    assert successor.next_open == 2


@pytest.mark.parametrize(
    ("consistency", "step"), [("bsp", 9), ("bsp:backup=1", 9), ("ssp:3", 6), ("asp", None)]
)
def test_others_need_the_steps_that_open_the_gate_for_who_is_furthest_of_them(consistency, step):
    """A table that is not of the job, or that a worker says nothing of, needs none."""
    desk = Desk(3, consistency=consistency)
    waits, second, third = desk.start()
    second.taken, third.taken = {0: 7, 5: 100}, {0: 9}
    assert desk.job.calls.needed(waits, {0: 4, 5: 1}) == ({} if step is None else {0: step})
    assert desk.job.calls.needed(waits, {0: 9}) == {}
    assert desk.job.calls.needed(waits, {}) == {}
    desk.finish(third)
    assert desk.job.calls.needed(waits, {0: 3}) == ({} if step is None else {0: step - 2})


def test_who_waits_in_a_call_is_not_asked_where_it_is():
    desk = Desk(2)
    waits, trains = desk.start()
    desk.job.calls.collectives.bring(0, waits.worker, waits.incarnation, mean(1.0))
    assert desk.job.calls.elsewhere() == [trains]
    desk.job.calls.settle(0)
    assert desk.job.calls.elsewhere() == [trains]
