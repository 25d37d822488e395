"""What an acknowledgement says of a push, and an answer of its wait: from the machine to the wire."""

from __future__ import annotations

import pytest

from ps_server.shard.partition.backup_machine import BackupStepMachine
from ps_server.shard.partition.inputs import Ack, PushOutcome
from ps_server.shard.partition.replies import Replies
from ps_wire.frames import frame as wire
from ps_wire.spec.consistency import ASP, BSP, SSP
from tests.unit.ps_server.alone import gradient, partition


def outcome(machine, contribution):
    return next(it.outcome for it in machine.push(contribution, 0.0) if isinstance(it, Ack))


@pytest.mark.parametrize("model", [ASP(), SSP(staleness=9)], ids=str)
def test_the_version_is_that_before_the_push_was_applied(model):
    """So it is the number of updates since the weights were read that is between the two."""
    machine = partition(model)
    assert outcome(machine, gradient(0, 0)) == PushOutcome(gap=1, version=0)
    assert outcome(machine, gradient(1, 0)) == PushOutcome(gap=0, version=1)
    assert outcome(machine, gradient(0, 1, payload=None)) == PushOutcome(gap=1, abstained=True)
    assert outcome(machine, gradient(0, 2)) == PushOutcome(gap=2, version=2)
    assert machine.tau == {0: 1, 1: 1, 2: 1}


def test_one_that_waited_for_too_long_is_told_that_it_was_dropped():
    machine = partition(ASP(max_delay=0))
    assert outcome(machine, gradient(0, 0)).version == 0
    assert outcome(machine, gradient(1, 0)) == PushOutcome(gap=0, dropped=True)


def test_under_bsp_the_version_is_that_of_the_step():
    machine = partition(BSP())
    assert outcome(machine, gradient(0, 0)) == PushOutcome(gap=1, version=0)
    assert outcome(machine, gradient(1, 0, payload=None)) == PushOutcome(gap=0, abstained=True)
    assert outcome(machine, gradient(0, 1)) == PushOutcome(gap=1, version=1)


def test_with_backup_workers_nothing_is_said_before_somebody_has_chosen():
    machine = partition(BSP(backup=1), members=(0, 1, 2), kind=BackupStepMachine)
    assert outcome(machine, gradient(0, 0)) == PushOutcome(gap=1)
    machine.push(gradient(1, 0), 0.0)
    machine.choose(0, frozenset({0, 1}), 0.0)
    assert outcome(machine, gradient(2, 0)) == PushOutcome(gap=0, dropped=True)


def test_of_a_push_that_came_twice_nothing_is_known():
    machine = partition(ASP())
    machine.push(gradient(0, 0), 0.0)
    assert outcome(machine, gradient(0, 0)) is None


@pytest.mark.parametrize(
    ("said", "flags", "version", "hyper"),
    [
        (None, 0, 0, 0),
        (PushOutcome(gap=3, version=7), wire.TOLD | wire.APPLIED, 7, 3),
        (PushOutcome(gap=3, version=0), wire.TOLD | wire.APPLIED, 0, 3),
        (PushOutcome(gap=2**40, dropped=True), wire.TOLD | wire.DROPPED, 0, 2**32 - 1),
        (PushOutcome(gap=0, abstained=True), wire.TOLD | wire.ABSTAINED, 0, 0),
    ],
)
def test_an_ack_carries_it_where_older_workers_do_not_look(said, flags, version, hyper):
    ack = Ack(worker=4, step=9, outcome=said)
    frame = Replies(1, 2).ack(ack, lent=False).frame
    assert (frame.flags, frame.version, frame.hyper) == (flags, version, hyper)
    assert Replies(1, 2).ack(ack, lent=True).frame.flags == flags | wire.LENT
    assert wire.decode(wire.encode(frame)) == frame


def test_a_wait_is_told_in_microseconds_to_who_asks_only():
    made = Replies(1, 2)
    plain = made.pulled(3, 4, [(0, 3)], memoryview(b"1234")).frame
    assert (plain.flags, plain.hyper) == (0, 0)
    timed = made.pulled(3, 4, [(0, 3)], memoryview(b"1234"), waited_s=0.25)
    assert (timed.frame.flags, timed.frame.hyper) == (wire.TIMED, 250_000)
    assert (timed.told().frame.flags, timed.told().frame.hyper) == (wire.TIMED | wire.SHARED, 250_000)
    assert made.pulled(3, 4, [], memoryview(b""), waited_s=1e9).frame.hyper == 2**32 - 1
