"""What the machine keeps of its members' clocks is what a look at all of them would find."""

from __future__ import annotations

from contextlib import suppress
from copy import copy

from hypothesis import given
from hypothesis import strategies as st

from ps_server.agreement.gate import gate_of
from ps_server.shard.partition.backup_machine import machine_of
from ps_server.shard.partition.clock_counts import ClockCounts
from ps_server.shard.partition.machine import Action, Complete, Contribution, Pull, StepMachine
from ps_server.shard.partition.waiting_pulls import WaitingPulls
from ps_wire.errors import PsError
from ps_wire.spec.consistency import ASP, BSP, SSP

WORKERS = 4
MODELS = st.sampled_from([BSP(), BSP(1), BSP(2), SSP(0), SSP(1), SSP(3), ASP()])
INPUTS = (
    "enter",
    "prepare",
    "leave",
    "fence",
    "evict",
    "push",
    "push",
    "push",
    "pull",
    "pull",
    "choose",
    "load",
)


class Driven:
    """A machine, and a caller that closes each step as soon as it may."""

    def __init__(self, model) -> None:
        self.model = model
        self.machine = machine_of(gate_of(model))
        self.incarnations = [0] * WORKERS

    def give(self, name: str, worker: int, extra: int) -> None:
        with suppress(PsError):  # refused: nothing has changed
            getattr(self, name)(worker, extra)

    def prepare(self, worker: int, _extra: int) -> int:
        self.incarnations[worker] += 1
        return self.machine.prepare(worker, self.incarnations[worker])

    def enter(self, worker: int, extra: int) -> None:
        first = self.prepare(worker, extra)
        self.follow(self.machine.join(worker, self.incarnations[worker], first + extra // 2, 0.0))

    def leave(self, worker: int, _extra: int) -> None:
        self.follow(self.machine.leave(worker, self.incarnations[worker], 0.0))

    def fence(self, worker: int, _extra: int) -> None:
        self.machine.fence(worker, self.incarnations[worker])

    def evict(self, worker: int, extra: int) -> None:
        limit = self.machine.fence(worker, self.incarnations[worker])
        if limit is not None:
            self.follow(self.machine.evict(worker, self.incarnations[worker], limit - extra % 2, 0.0))

    def push(self, worker: int, extra: int) -> None:
        step = dict(self.machine.clocks).get(worker, 0) - (extra == 3)
        given = Contribution(
            worker=worker,
            incarnation=self.incarnations[worker],
            step=step,
            version=self.machine.version,
            payload=None if extra == 2 else "g",
        )
        self.follow(self.machine.push(given, 0.0))

    def pull(self, worker: int, _extra: int) -> None:
        clock = dict(self.machine.clocks).get(worker, 0)
        self.follow(
            self.machine.pull(Pull(worker=worker, incarnation=self.incarnations[worker], clock=clock))
        )

    def choose(self, _worker: int, extra: int) -> None:
        """With backup workers: the open step, or where a late one goes on."""
        machine = self.machine
        late = sorted(machine.standing.late)
        if late and extra % 2:
            self.follow(machine.catch_up(late[0], machine.open_step, 0.0))
        elif machine.staged and machine.gate.backup and machine.open_step == machine.version:
            workers = frozenset(item.worker for item in machine.staged[: 1 + extra])
            self.follow(machine.choose(machine.version, workers, 0.0))

    def load(self, _worker: int, _extra: int) -> None:
        """A successor goes on; who asked for weights asks again."""
        before, self.machine = self.machine, machine_of(gate_of(self.model))
        self.machine.load(before.dump(), 0.0)
        assert self.machine.dump() == before.dump()
        self.follow(self.machine.resume(0.0))

    def follow(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Complete) and action.step == self.machine.version and self.machine.complete:
                self.follow(self.machine.decide(action.step, action.workers, 1.0, 0.0))


def check(machine: StepMachine) -> None:
    """Against all members, one by one."""
    members = machine._members.values()
    clocks = [member.clock for member in members]
    assert machine._counts.smallest == min(clocks, default=None)
    assert sorted(machine._counts._counts.items()) == sorted({it: clocks.count(it) for it in clocks}.items())
    assert machine._num_fenced == sum(member.fenced for member in members)
    if machine.gate.aggregates and not machine.gate.backup:
        everyone = all(member.clock > machine.version and not member.fenced for member in members)
        assert machine.complete == (everyone if clocks else bool(machine.staged))
    for pull in machine.waiting:
        member = machine._members[pull.worker]
        assert member.late or not machine.gate.opens(member.clock, machine.version, min(clocks)), "it may go"


@given(
    MODELS,
    st.lists(st.tuples(st.sampled_from(INPUTS), st.integers(0, WORKERS - 1), st.integers(0, 3)), max_size=60),
)
def test_the_smallest_clock_is_that_of_the_slowest_member(model, inputs):
    """Under joins, leaves, fences, evictions, late workers and hand-offs, in every consistency model."""
    driven = Driven(model)
    for worker in range(WORKERS - 1):
        driven.enter(worker, 0)
    for given_input in inputs:
        driven.give(*given_input)
        check(driven.machine)


@given(st.lists(st.integers(0, 5)), st.lists(st.tuples(st.integers(0, 9), st.booleans())))
def test_a_multiset_of_clocks_knows_its_smallest(clocks, changes):
    counts = ClockCounts()
    for clock in clocks:
        counts.add(clock)
    for place, advances in changes:
        if not clocks:
            break
        clock = clocks.pop(place % len(clocks))
        if advances:
            counts.advance(clock)
            clocks.append(clock + 1)
        else:
            counts.remove(clock)
        assert counts.smallest == min(clocks, default=None)


def test_a_copy_goes_another_way():
    """What comes to the one is not in the other."""
    counts, pulls = ClockCounts(), WaitingPulls()
    counts.add(3)
    pulls.put(Pull(worker=1, incarnation=1, clock=3), 3)
    other_counts, other_pulls = copy(counts), copy(pulls)
    counts.advance(3)
    assert pulls.pop_until(3) == {3: [Pull(worker=1, incarnation=1, clock=3)]}
    assert (counts.smallest, other_counts.smallest) == (4, 3)
    assert (len(pulls), len(other_pulls)) == (0, 1)
    assert 1 in other_pulls
