"""How a BSP step closes: the machine says that it is complete, the caller withholds and decides (R4)."""

from __future__ import annotations

import pytest

from ps_server.shard.partition.machine import Apply, Complete, StepMachine
from ps_wire.spec.consistency import ASP, BSP
from tests.unit.ps_server.alone import ack, answer, ask, gradient, partition


def test_a_machine_reports_a_complete_step():
    """It says who has pushed, and closes nothing by itself."""
    machine = partition(BSP(), members=(0, 1, 2), kind=StepMachine)
    machine.push(gradient(0, 0), 0.0)
    machine.push(gradient(1, 0), 0.0)
    assert machine.leave(2, 1, 0.0) == [Complete(step=0, workers=frozenset({0, 1}))]
    assert (machine.version, len(machine.staged)) == (0, 2)


def test_a_decision_drops_whom_it_does_not_name():
    """Those named are applied with the scale, the others are dropped and counted; all may go on."""
    machine = partition(BSP(), members=(0, 1, 2), kind=StepMachine)
    machine.push(gradient(0, 0), 0.0)
    machine.push(gradient(1, 0, payload=None), 0.0)
    assert machine.push(gradient(2, 0), 0.0) == [ack(2, 0), Complete(step=0, workers=frozenset({0, 1, 2}))]
    machine.pull(ask(2, 1, asked_s=1.0))
    assert machine.decide(0, frozenset({0, 1}), 0.5, 2.0) == [
        Apply(step=0, contributions=(gradient(0, 0),), scale=0.5, version=1),
        answer(ask(2, 1, asked_s=1.0), version=1),
    ]
    counts = [(book.applied, book.dropped, book.abstained) for book in machine.ledgers.values()]
    assert counts == [(1, 0, 0), (0, 0, 1), (0, 1, 0)]
    assert machine.tau == {0: 1}


def test_a_complete_step_is_reported_again_when_members_change():
    """Who leaves before the decision has pushed: the contributions are the same."""
    machine = partition(BSP(), kind=StepMachine)
    machine.push(gradient(0, 0), 0.0)
    complete = Complete(step=0, workers=frozenset({0, 1}))
    assert machine.push(gradient(1, 0), 0.0) == [ack(1, 0), complete]
    assert machine.leave(1, 1, 0.0) == machine.leave(0, 1, 0.0) == [complete]
    assert machine.join(0, 2, 1, 0.0) == [complete]
    (apply,) = machine.decide(0, complete.workers, 1.0, 0.0)
    assert apply.contributions == (gradient(0, 0), gradient(1, 0))


def test_a_withheld_contribution_is_an_abstention():
    """Its payload is let go, it is not applied, and it is counted where it belongs."""
    machine = partition(BSP(), kind=StepMachine)
    machine.push(gradient(0, 0), 0.0)
    machine.push(gradient(1, 0), 0.0)
    machine.withhold(0)
    assert machine.staged == (gradient(0, 0, payload=None), gradient(1, 0))
    (apply,) = machine.decide(0, frozenset({0, 1}), 1.0, 0.0)
    assert apply.contributions == (gradient(1, 0),)
    assert [(book.applied, book.abstained) for book in machine.ledgers.values()] == [(0, 1), (1, 0)]
    assert machine.tau == {0: 1}


def test_a_step_of_which_all_is_withheld_closes():
    """The version grows, nothing is applied, and who waits is answered."""
    machine = partition(BSP(), members=(0,), kind=StepMachine)
    machine.push(gradient(0, 0), 0.0)
    machine.pull(ask(0, 1))
    machine.withhold(0)
    assert machine.decide(0, frozenset({0}), 1.0, 0.0) == [answer(ask(0, 1), version=1)]


def test_a_decision_reports_the_next_step_if_that_is_complete_too():
    """Clocks may be ahead of the version after a suspension: the steps between close one by one."""
    machine = partition(BSP(), members=(), kind=StepMachine)
    assert machine.join(0, 1, 2, 0.0) == [Complete(step=0, workers=frozenset())]
    assert machine.decide(0, frozenset(), 1.0, 0.0) == [Complete(step=1, workers=frozenset())]
    assert machine.decide(1, frozenset(), 1.0, 0.0) == []
    assert machine.version == 2


def test_only_the_open_step_of_bsp_can_be_decided():
    """A decision for another step, or where nothing is held, is our own bug."""
    with pytest.raises(AssertionError):
        partition(BSP()).decide(1, frozenset(), 1.0, 0.0)
    with pytest.raises(AssertionError):
        partition(ASP()).decide(0, frozenset(), 1.0, 0.0)
