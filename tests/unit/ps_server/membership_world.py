"""Honest workers, two shards with a partition each, and a coordinator that changes members in two rounds.

The partitions are the real ones; rounds, limits and first steps are made as `member.TwoRounds` makes them.
Every delivery of one frame or order to one shard is one event. Workers may die, or only be silent for too
long (`pause`): then they are evicted, what they had sent may still arrive before the fence, and those who
live come back as the next incarnation, at the step that they are named.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import pytest

from ps_server.gate import Gate, gate_of
from ps_server.partition import Action, Answer, Apply, Complete, Contribution, Partition, Pull
from ps_wire.consistency import Consistency
from ps_wire.errors import StaleIncarnation, StrangerRefused

SHARDS = 2
Event = tuple[str, int, int]  # name, worker, shard


class At(Enum):
    """Where a worker is with its step on one shard."""

    PULLING = auto()
    WAITING = auto()
    READY = auto()
    PUSHING = auto()
    PUSHED = auto()  # its last push


class Life(Enum):
    TRAINS = auto()
    DEAD = auto()
    COMES = auto()  # it asks to join, or to join again
    GOES = auto()  # it has said that it leaves
    GONE = auto()


@dataclass(frozen=True, slots=True)
class Worker:
    life: Life
    incarnation: int
    left: int  # steps that it still wants to take
    step: int = 0
    at: tuple[At, ...] = (At.PULLING,) * SHARDS
    asked: bool = False  # the coordinator has its change in its queue


@dataclass(frozen=True, slots=True)
class Change:
    """What the coordinator does now: `kind` is evict, enter or leave."""

    kind: str
    worker: int
    incarnation: int
    first: frozenset[int] = frozenset(range(SHARDS))  # shards that have not answered the first round
    answers: tuple[int, ...] = ()
    second: frozenset[int] = frozenset(range(SHARDS))

    @property
    def named(self) -> int:
        """The step of the second round."""
        return min(self.answers, default=0) if self.kind == "evict" else max(self.answers, default=0)


@dataclass(slots=True)
class World:
    gate: Gate
    partitions: list[Partition]
    workers: dict[int, Worker]
    queue: tuple[Change, ...] = ()
    received: Counter[tuple[int, int]] = field(default_factory=Counter)  # by worker and shard
    fenced: frozenset[tuple[int, int, int]] = frozenset()  # worker, incarnation, shard
    applied: frozenset[tuple[int, int, int, int]] = frozenset()  # worker, incarnation, step, shard
    limits: frozenset[tuple[int, int, int]] = frozenset()  # worker, incarnation, limit
    deaths: int = 0
    pauses: int = 0

    @classmethod
    def start(
        cls, model: Consistency, steps: tuple[int, ...], late: tuple[int, ...], deaths: int, pauses: int
    ) -> World:
        gate = gate_of(model)
        partitions = [Partition(gate=gate) for _ in range(SHARDS)]
        workers = {}
        for number, left in enumerate(steps):
            workers[number] = Worker(Life.TRAINS, 1, left)
            for partition in partitions:
                partition.join(number, 1, 0, 0.0)
        for number, left in enumerate(late, len(steps)):
            workers[number] = Worker(Life.COMES, 0, left)
        return cls(gate, partitions, workers, deaths=deaths, pauses=pauses)

    def key(self) -> tuple[object, ...]:
        machines = [
            (
                machine.version,
                machine.newest_clock,
                tuple(
                    (worker, member.incarnation, member.clock, member.fenced, member.prepared)
                    for worker, member in sorted(machine._members.items())
                ),
                tuple((item.worker, item.step) for item in machine.staged),
                tuple((pull.worker, pull.clock) for pull in machine.waiting),
            )
            for machine in self.partitions
        ]
        workers = tuple(self.workers.items())
        return (*machines, workers, self.queue, self.fenced, self.applied, self.deaths, self.pauses)

    def fork(self) -> World:
        other = copy(self)
        other.partitions, other.workers = copy(self.partitions), copy(self.workers)
        other.received = copy(self.received)
        return other

    # -- what can happen -----------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        over = all(worker.life in (Life.GONE, Life.DEAD) for worker in self.workers.values())
        return over and not self.queue and not any(machine.clocks for machine in self.partitions)

    def honest(self) -> Iterator[Event]:
        for number, worker in self.workers.items():
            if worker.life in (Life.COMES, Life.DEAD) and not worker.asked:
                yield "ask", number, -1
            for shard in range(SHARDS):
                fenced = (number, worker.incarnation, shard) in self.fenced
                name = {At.PULLING: "pull", At.PUSHING: "push"}.get(worker.at[shard])
                if name is not None and worker.life is Life.TRAINS and not fenced:
                    yield name, number, shard
        if self.queue:
            change = self.queue[0]
            for shard in change.first or change.second:
                yield "round", change.worker, shard

    def events(self) -> list[Event]:
        found = list(self.honest())
        for number, worker in self.workers.items():
            if worker.life is Life.TRAINS and not worker.asked:
                found += [("die", number, -1)] * bool(self.deaths)
                found += [("pause", number, -1)] * bool(self.pauses)
            for shard in range(SHARDS):
                late = (number, worker.incarnation, shard) in self.fenced or worker.life is Life.DEAD
                if late and worker.life in (Life.TRAINS, Life.DEAD) and worker.at[shard] is At.PUSHING:
                    found.append(("ghost", number, shard))
        return found

    def step(self, event: Event) -> None:
        name, number, shard = event
        if shard >= 0:
            self.partitions[shard] = pickle.loads(pickle.dumps(self.partitions[shard]))
        getattr(self, f"_on_{name}")(number, shard)
        if number in self.workers:
            self._turn(number)

    # -- workers -------------------------------------------------------------------------------------

    def _put(self, number: int, **changes: object) -> Worker:
        self.workers[number] = replace(self.workers[number], **changes)  # type: ignore[arg-type]
        return self.workers[number]

    def _move(self, number: int, shard: int, at: At) -> None:
        places = list(self.workers[number].at)
        places[shard] = at
        self._put(number, at=tuple(places))

    def _on_pull(self, number: int, shard: int) -> None:
        worker = self.workers[number]
        self._move(number, shard, At.WAITING)
        pull = Pull(worker=number, incarnation=worker.incarnation, clock=worker.step)
        self._carry_out(shard, self.partitions[shard].pull(pull))

    def _on_push(self, number: int, shard: int) -> None:
        worker = self.workers[number]
        self._move(number, shard, At.PUSHED)
        self.received[number, shard] += 1
        self._carry_out(shard, self.partitions[shard].push(self._gradient(number), 0.0))
        assert worker.life is not Life.GONE

    def _gradient(self, number: int) -> Contribution:
        worker = self.workers[number]
        update = number, worker.incarnation, worker.step
        return Contribution(
            worker=number, incarnation=worker.incarnation, step=worker.step, payload=update, version=0
        )

    def _on_ghost(self, number: int, shard: int) -> None:
        """What was on its way arrives after all: taken of one who died, refused behind a fence."""
        worker = self.workers[number]
        if (number, worker.incarnation, shard) in self.fenced:
            with pytest.raises((StaleIncarnation, StrangerRefused)):
                self.partitions[shard].push(self._gradient(number), 0.0)
            self._move(number, shard, At.WAITING)
        else:
            self._on_push(number, shard)

    def _on_die(self, number: int, _: int) -> None:
        self.deaths -= 1
        self._put(number, life=Life.DEAD)

    def _on_pause(self, number: int, _: int) -> None:
        self.pauses -= 1
        worker = self._put(number, asked=True)
        self.queue += (Change("evict", number, worker.incarnation),)

    def _on_ask(self, number: int, _: int) -> None:
        worker = self._put(number, asked=True)
        dead = worker.life is Life.DEAD
        incarnation = worker.incarnation + (not dead)
        self.queue += (Change("evict" if dead else "enter", number, incarnation),)

    def _turn(self, number: int) -> None:
        """R1: the next phase begins when all shards have come as far."""
        worker = self.workers[number]
        if worker.life is not Life.TRAINS:
            return
        if set(worker.at) == {At.READY}:
            self._put(number, at=(At.PUSHING,) * SHARDS)
        elif set(worker.at) == {At.PUSHED}:
            worker = self._put(number, left=worker.left - 1, step=worker.step + 1)
            if worker.left:
                self._put(number, at=(At.PULLING,) * SHARDS)
            else:
                self._put(number, life=Life.GOES, asked=True)
                if not worker.asked:  # else its eviction is on the way
                    self.queue += (Change("leave", number, worker.incarnation, first=frozenset()),)

    # -- the coordinator -----------------------------------------------------------------------------

    def _on_round(self, number: int, shard: int) -> None:
        change = self.queue[0]
        machine, incarnation = self.partitions[shard], change.incarnation
        if shard in change.first:
            if change.kind == "evict":
                clock = machine.fence(number, incarnation)
                self.fenced |= {(number, incarnation, shard)}
            else:
                clock = machine.prepare(number, incarnation)
            assert clock is not None
            change = replace(change, first=change.first - {shard}, answers=(*change.answers, clock))
            change = replace(change, answers=tuple(sorted(change.answers)))
        else:
            if change.kind == "evict":
                actions = machine.evict(number, incarnation, change.named, 0.0)
            elif change.kind == "enter":
                actions = machine.join(number, incarnation, change.named, 0.0)
            else:
                actions = machine.leave(number, incarnation, 0.0)
            change = replace(change, second=change.second - {shard})
            self._carry_out(shard, actions)
        self.queue = (change, *self.queue[1:])
        if not change.second:
            self.queue = self.queue[1:]
            self._changed(change)

    def _changed(self, change: Change) -> None:
        number = change.worker
        worker = self.workers[number]
        if change.kind == "enter":
            begun = (At.PULLING,) * SHARDS
            places = {"incarnation": change.incarnation, "step": change.named, "at": begun}
            self._put(number, life=Life.TRAINS, asked=False, **places)
        elif change.kind == "evict":
            self.limits |= {(number, change.incarnation, change.named)}
            if worker.life is Life.TRAINS and worker.left:
                self._put(number, life=Life.COMES, asked=False)
            elif worker.life is Life.GOES:
                self._put(number, life=Life.GONE)
        else:
            self._put(number, life=Life.GONE)

    # -- what follows --------------------------------------------------------------------------------

    def _carry_out(self, shard: int, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Apply():
                    new = {(*item.payload, shard) for item in action.contributions}
                    assert not new & self.applied, "each push at most once"
                    self.applied |= new
                case Answer():
                    for pull in action.pulls:
                        worker = self.workers[pull.worker]
                        current = worker.incarnation == pull.incarnation and worker.life is Life.TRAINS
                        if current and worker.at[shard] is At.WAITING:
                            self._move(pull.worker, shard, At.READY)
                            self._turn(pull.worker)
                case Complete():
                    machine = self.partitions[shard]
                    self._carry_out(shard, machine.decide(action.step, action.workers, 1.0, 0.0))


def check(world: World) -> None:
    """Laws 5, 12 and 14, at any time."""
    bound = world.gate.staleness
    for shard, machine in enumerate(world.partitions):
        staged = Counter(item.worker for item in machine.staged)
        for number, ledger in machine.ledgers.items():
            settled = ledger.applied + ledger.dropped + ledger.abstained
            assert settled + staged[number] == ledger.received == world.received[number, shard]
        slowest = min((clock for _, clock in machine.clocks), default=0)
        for number, clock in machine.clocks if bound is not None else ():
            worker = world.workers[number]
            computing = worker.life is Life.TRAINS and worker.at[shard] in (At.READY, At.PUSHING)
            assert clock - slowest <= (bound if computing else bound + 1), (clock, slowest, computing)


def check_limits(world: World) -> None:
    """At the end, a push of an evicted incarnation counts everywhere, or is counted as mixed."""
    mixed = sum(machine.mixed_steps for machine in world.partitions)
    found = 0
    for number, incarnation, limit in world.limits:
        steps = {step for who, which, step, _ in world.applied if (who, which) == (number, incarnation)}
        for step in steps:
            where = {item[3] for item in world.applied if item[:3] == (number, incarnation, step)}
            if step < limit:
                assert len(where) == SHARDS, (number, step, limit, where)
            else:
                found += len(where)
    assert found == mixed
