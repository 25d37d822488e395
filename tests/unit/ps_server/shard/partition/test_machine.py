"""The state machine of one partition, rule by rule."""

from __future__ import annotations

import random

import pytest

from ps_server.shard.partition.machine import MAX_TAU, Apply, Ledger, StepMachine
from ps_wire.errors import FrameRefused, PushOutOfOrder, StaleIncarnation, StrangerRefused
from ps_wire.spec.consistency import ASP, BSP, SSP, Consistency
from tests.unit.ps_server.alone import ack, answer, ask, gradient, partition

# -- BSP ---------------------------------------------------------------------------------------------


def test_bsp_applies_once_when_the_last_member_has_pushed():
    """A step closes at its last push, in rank order, with its weights, and answers those who wait."""
    machine = partition(BSP(), members=(2, 0, 1))
    first, second, third = (gradient(worker, 0, weight=worker + 1.0) for worker in (2, 0, 1))
    assert machine.push(first, 1.0) == [ack(2, 0)]
    assert machine.pull(ask(2, 1, asked_s=1.0)) == []
    assert machine.push(second, 2.0) == [ack(0, 0)]
    assert machine.staged == (second, first)
    assert machine.waiting == (ask(2, 1, asked_s=1.0),)
    assert machine.push(third, 5.0) == [
        ack(1, 0),
        Apply(step=0, contributions=(second, third, first), scale=1.0, version=1),
        answer(ask(2, 1, asked_s=1.0), version=1),
    ]
    assert (machine.version, machine.staged, machine.waiting) == (1, (), ())
    assert machine.ledgers[2] == Ledger(received=1, applied=1, max_gap=1, gate_wait_s=4.0)
    assert machine.ledgers[1] == Ledger(received=1, applied=1)
    assert machine.tau == {0: 3}


def test_bsp_counts_workers_and_not_requests():
    """A push that arrives twice closes no step: distinct members do."""
    machine = partition(BSP())
    machine.push(gradient(0, 0), 0.0)
    assert machine.push(gradient(0, 0), 0.0) == [ack(0, 0)]
    assert (machine.version, len(machine.staged)) == (0, 1)
    assert machine.ledgers[0] == Ledger(received=1, duplicates=1, max_gap=1)


def test_bsp_takes_no_push_of_a_step_whose_version_is_not_there():
    """R1: who pushes step 1 before step 0 has closed cannot have read version 1."""
    machine = partition(BSP())
    machine.push(gradient(0, 0), 0.0)
    with pytest.raises(PushOutOfOrder, match="version 0 is the newest") as refused:
        machine.push(gradient(0, 1), 0.0)
    assert refused.value.facts == {"clock": 1}
    assert machine.ledgers[0] == Ledger(received=1, refused=1, max_gap=1)


def test_bsp_leaves_abstentions_out_of_the_mean():
    """Who abstains advances its clock; the others' contributions are applied."""
    machine = partition(BSP())
    machine.push(gradient(0, 0, payload=None), 0.0)
    actions = machine.push(gradient(1, 0), 0.0)
    assert actions[1:] == [Apply(step=0, contributions=(gradient(1, 0),), scale=1.0, version=1)]
    assert machine.ledgers[0] == Ledger(received=1, abstained=1, max_gap=1)
    assert machine.clocks == ((0, 1), (1, 1))


def test_bsp_closes_a_step_from_which_all_abstain():
    """When all abstain the step closes, the version grows, and nothing is applied."""
    machine = partition(BSP())
    machine.push(gradient(0, 0, payload=None), 0.0)
    machine.pull(ask(0, 1))
    assert machine.push(gradient(1, 0, payload=None), 0.0) == [
        ack(1, 0),
        answer(ask(0, 1), version=1),
    ]
    assert (machine.version, machine.tau) == (1, {})


def test_bsp_answers_a_pull_of_a_closed_step_at_once():
    """A pull at the version is answered with exactly that version."""
    machine = partition(BSP())
    assert machine.pull(ask(1, 0)) == [answer(ask(1, 0), version=0)]


def test_a_leave_closes_the_step_that_waited_for_it():
    """When the one member that was missing leaves, the step closes with what is staged."""
    machine = partition(BSP())
    machine.push(gradient(0, 0), 0.0)
    machine.pull(ask(0, 1))
    assert machine.leave(1, 1, 3.0) == [
        Apply(step=0, contributions=(gradient(0, 0),), scale=1.0, version=1),
        answer(ask(0, 1), version=1),
    ]


def test_what_a_worker_pushed_before_it_left_counts():
    """A contribution stays staged when its worker leaves, and closes with the step."""
    machine = partition(BSP())
    machine.push(gradient(0, 0), 0.0)
    assert machine.leave(0, 1, 0.0) == []
    (_, apply) = machine.push(gradient(1, 0), 0.0)
    assert apply.contributions == (gradient(0, 0), gradient(1, 0))
    assert machine.ledgers[0] == Ledger(received=1, applied=1, max_gap=1)


def test_the_last_leave_closes_what_is_staged_and_no_more():
    """With no member left the open step closes if somebody pushed it; an untouched one stays open."""
    machine = partition(BSP())
    machine.push(gradient(0, 0), 0.0)
    machine.leave(0, 1, 0.0)
    assert machine.leave(1, 1, 0.0) == [Apply(step=0, contributions=(gradient(0, 0),), scale=1.0, version=1)]
    assert (machine.version, machine.clocks, machine.newest_clock) == (1, (), 1)
    untouched = partition(BSP())
    assert untouched.leave(0, 1, 0.0) == untouched.leave(1, 1, 0.0) == []
    assert untouched.version == 0


# -- SSP and ASP -------------------------------------------------------------------------------------


def test_ssp_applies_on_arrival_and_acknowledges_after_that():
    """Each push is one optimizer step of its own, on its arrival."""
    machine = partition(SSP(1))
    push = gradient(1, 0, weight=7.0)
    assert machine.push(push, 0.0) == [Apply(step=0, contributions=(push,), scale=1.0, version=1), ack(1, 0)]
    assert (machine.version, machine.staged) == (1, ())


def test_asp_drops_what_is_staler_than_its_delay():
    """Counted and acknowledged; the clock advances, the version and the weights do not."""
    machine = partition(ASP(1), members=(0, 1))
    for step in range(2):
        machine.push(gradient(0, step, version=step), 0.0)
    assert machine.push(gradient(1, 0, version=0), 0.0) == [ack(1, 0)]
    assert machine.version == 2
    assert (machine.ledgers[1].received, machine.ledgers[1].dropped) == (1, 1)
    assert machine.clocks == ((0, 2), (1, 1))
    assert isinstance(machine.push(gradient(1, 1, version=1), 0.0)[0], Apply)


@pytest.mark.parametrize("model", [BSP(), SSP(1), ASP(), ASP(1)], ids=str)
def test_whether_a_push_is_applied_at_once_is_known_before(model: Consistency):
    """Whatever comes: late, early, twice, of another incarnation, too stale, of one who is being evicted."""
    draw, applied = random.Random(7), set()
    for _ in range(40):
        machine = partition(model, members=(0, 1, 2), kind=StepMachine)
        for number in range(20):
            worker, clocks = draw.randrange(4), dict(machine.clocks)
            if number == 15:
                machine.fence(worker, 1)
            push = gradient(
                worker,
                max(clocks.get(worker, 0) + draw.choice((-1, 0, 0, 0, 1)), 0),
                version=max(machine.version - draw.randrange(3), 0),
                incarnation=draw.choice((1, 1, 1, 2)),
            )
            known = machine.applies(push)
            try:
                actions = machine.push(push, 0.0)
            except FrameRefused:
                actions = []
            assert known == any(isinstance(action, Apply) for action in actions), push
            applied.add(known)
    assert applied == ({False} if isinstance(model, BSP) else {False, True})


def test_ssp_holds_a_pull_until_the_slowest_comes_within_the_bound():
    """The push that brings the slowest near enough answers those who wait, and counts how long they did."""
    machine = partition(SSP(0))
    machine.push(gradient(0, 0), 1.0)
    assert machine.pull(ask(0, 1, asked_s=1.0)) == []
    actions = machine.push(gradient(1, 0), 4.0)
    assert actions[-1] == answer(ask(0, 1, asked_s=1.0), version=2)
    assert machine.ledgers[0].gate_wait_s == 3.0
    assert machine.waiting == ()


def test_ssp_takes_no_push_that_is_further_ahead_than_a_pull_could_be():
    """Else who never pulls would run ahead without bound; the committed gap is s + 1 at most."""
    machine = partition(SSP(1))
    for step in range(2):
        machine.push(gradient(0, step), 0.0)
    with pytest.raises(PushOutOfOrder, match="than the bound of 1: pull at this clock first") as refused:
        machine.push(gradient(0, 2), 0.0)
    assert refused.value.facts == {"clock": 2}
    with pytest.raises(PushOutOfOrder):
        machine.push(gradient(0, 2, payload=None), 0.0)
    machine.push(gradient(1, 0), 0.0)
    assert machine.push(gradient(0, 2), 0.0)[-1] == ack(0, 2)
    assert machine.ledgers[0] == Ledger(received=3, applied=3, refused=2, max_gap=2)


def test_asp_takes_every_push():
    machine = partition(ASP())
    for step in range(9):
        machine.push(gradient(0, step), 0.0)
    assert machine.ledgers[0].max_gap == 9


def test_a_leave_opens_the_gate():
    """When the slowest leaves, those who waited for it are answered, all in one answer."""
    machine = partition(SSP(0), members=(0, 1, 2))
    for worker in (1, 0):
        machine.push(gradient(worker, 0), 0.0)
        assert machine.pull(ask(worker, 1)) == []
    assert machine.leave(2, 1, 0.0) == [answer(ask(0, 1), ask(1, 1), version=2)]


def test_what_a_worker_asked_for_before_it_left_is_not_sent():
    """A waiting pull goes when its worker leaves or comes back."""
    machine = partition(SSP(0))
    machine.push(gradient(0, 0), 0.0)
    machine.pull(ask(0, 1))
    assert machine.leave(0, 1, 0.0) == []
    assert (machine.waiting, machine.clocks) == ((), ((1, 0),))
    machine.push(gradient(1, 0), 0.0)
    machine.join(0, 2, 0, 0.0)
    machine.pull(ask(1, 1))
    machine.join(1, 2, 1, 0.0)
    assert machine.waiting == ()


def test_asking_again_replaces_what_was_asked():
    """A worker has one pull here; the second is the one that is answered, and its wait the one counted."""
    machine = partition(SSP(0))
    machine.push(gradient(0, 0), 0.0)
    machine.pull(ask(0, 1, asked_s=1.0))
    machine.pull(ask(0, 1, asked_s=2.0))
    assert machine.waiting == (ask(0, 1, asked_s=2.0),)
    assert machine.push(gradient(1, 0), 5.0)[-1].pulls == (ask(0, 1, asked_s=2.0),)
    assert machine.ledgers[0].gate_wait_s == 3.0


def test_an_abstention_without_aggregation_applies_nothing():
    """In SSP and ASP the clock advances and the version stays."""
    machine = partition(ASP())
    assert machine.push(gradient(0, 0, payload=None), 0.0) == [ack(0, 0)]
    assert (machine.version, machine.clocks, machine.tau) == (0, ((0, 1), (1, 0)), {})
    assert machine.ledgers[0] == Ledger(received=1, abstained=1, max_gap=1)


def test_tau_is_the_updates_between_reading_and_applying():
    """The version staleness counts updates before this one; what cannot be is clamped to its range."""
    machine = partition(ASP())
    for step in range(3):
        machine.push(gradient(0, step, version=step), 0.0)
    machine.push(gradient(1, 0, version=1), 0.0)
    assert machine.tau == {0: 3, 2: 1}
    machine.push(gradient(1, 1, version=99), 0.0)
    assert machine.tau[0] == 4
    machine.version = MAX_TAU + 100
    machine.push(gradient(1, 2, version=1), 0.0)
    assert machine.tau == {0: 4, 2: 1, MAX_TAU: 1}


# -- order and membership ----------------------------------------------------------------------------


@pytest.mark.parametrize("model", [BSP(), SSP(1), ASP()], ids=str)
def test_r3_a_step_beyond_the_clock_is_refused_with_the_clock(model):
    """Refused, counted, and told from where to send again; nothing of it is taken."""
    machine = partition(model)
    with pytest.raises(PushOutOfOrder, match="send again") as refused:
        machine.push(gradient(0, 1), 0.0)
    assert refused.value.facts == {"clock": 0}
    assert machine.ledgers[0] == Ledger(refused=1)
    assert (machine.clocks, machine.version) == (((0, 0), (1, 0)), 0)


@pytest.mark.parametrize("model", [SSP(1), ASP()], ids=str)
def test_r3_a_step_before_the_clock_is_acknowledged_again(model):
    """A duplicate yields its ack, is counted, and is not applied."""
    machine = partition(model)
    machine.push(gradient(0, 0), 0.0)
    assert machine.push(gradient(0, 0), 0.0) == [ack(0, 0)]
    assert (machine.version, machine.clocks) == (1, ((0, 1), (1, 0)))
    assert machine.ledgers[0] == Ledger(received=1, applied=1, duplicates=1, max_gap=1)


@pytest.mark.parametrize("clock", [0, 2])
def test_a_pull_at_another_clock_is_refused(clock):
    """A late copy of an older pull, or one before its push, gets no weights."""
    machine = partition(ASP())
    machine.push(gradient(0, 0), 0.0)
    with pytest.raises(PushOutOfOrder, match="its clock here is 1") as refused:
        machine.pull(ask(0, clock))
    assert refused.value.facts == {"clock": 1}
    assert (machine.ledgers[0].refused, machine.waiting) == (1, ())


@pytest.mark.parametrize("incarnation", [1, 3])
def test_another_incarnation_is_refused(incarnation):
    """A frame of an incarnation that is not the live one is refused and counted, older or newer."""
    machine = partition(ASP(), members=())
    machine.join(0, 2, 4, 0.0)
    for call in (
        lambda: machine.push(gradient(0, 4, incarnation=incarnation), 0.0),
        lambda: machine.pull(ask(0, 4, incarnation=incarnation)),
    ):
        with pytest.raises(StaleIncarnation) as refused:
            call()
        assert refused.value.facts == {"worker": 0, "incarnation": incarnation, "live": 2}
    assert machine.ledgers[0] == Ledger(refused=2)
    assert machine.leave(0, incarnation, 0.0) == []
    assert machine.clocks == ((0, 4),)


def test_a_stranger_is_refused():
    """Who is not a member, or has left, is not heard; its leave is not news."""
    machine = partition(ASP())
    machine.leave(1, 1, 0.0)
    for worker in (1, 7):
        with pytest.raises(StrangerRefused, match=f"worker {worker}"):
            machine.push(gradient(worker, 0), 0.0)
        with pytest.raises(StrangerRefused):
            machine.pull(ask(worker, 0))
        assert machine.leave(worker, 1, 0.0) == []


def test_a_join_with_a_later_incarnation_takes_the_named_clock():
    """A worker comes back at the step it is told; its books go on; its old incarnation is refused."""
    machine = partition(ASP())
    machine.push(gradient(0, 0), 0.0)
    machine.leave(0, 1, 0.0)
    machine.join(0, 2, 5, 0.0)
    assert (machine.clocks, machine.newest_clock) == (((0, 5), (1, 0)), 5)
    machine.push(gradient(0, 5, incarnation=2), 0.0)
    assert (machine.ledgers[0].received, machine.newest_clock) == (2, 6)
    with pytest.raises(StaleIncarnation):
        machine.push(gradient(0, 1), 0.0)


@pytest.mark.parametrize("incarnation", [0, 1])
def test_a_join_needs_a_later_incarnation(incarnation):
    """A member is replaced by a later incarnation only: anything else is our own bug."""
    with pytest.raises(AssertionError):
        partition(ASP()).join(0, incarnation, 0, 0.0)


def test_the_largest_gap_is_kept_when_the_gap_closes():
    """It is what one push has made, not what the last one has."""
    machine = partition(SSP(3))
    for worker, step in ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2)):
        machine.push(gradient(worker, step), 0.0)
    assert machine.ledgers[0].max_gap == 2


def test_the_newest_clock_is_that_of_the_fastest():
    """Whoever pushes last, and also when the fastest has gone."""
    machine = partition(SSP(3))
    for worker, step in ((0, 0), (0, 1), (1, 0)):
        machine.push(gradient(worker, step), 0.0)
    assert machine.newest_clock == 2
    machine.leave(0, 1, 0.0)
    machine.push(gradient(1, 1), 0.0)
    assert machine.newest_clock == 2


def test_the_newest_clock_outlives_its_worker():
    """The newest clock stays when the member that had it leaves."""
    machine = partition(ASP())
    machine.push(gradient(0, 0), 0.0)
    machine.leave(0, 1, 0.0)
    machine.push(gradient(1, 0), 0.0)
    assert (machine.newest_clock, machine.clocks) == (1, ((1, 1),))
