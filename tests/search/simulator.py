"""Honest workers around real `StepMachine` machines; which event comes next is the caller's choice.

A worker at step t pulls version t of every partition, and when all have arrived (R1) pushes its gradient of
step t on every partition; after its last step, all pushes acknowledged, it leaves. Every delivery of one
frame to one partition is one event, so partitions progress in any order, as on several shards. Faults (lost
replies, duplicates, reordered frames, broken connections) and deaths are events too, bounded by a budget.

The weights of a partition are the tuple of its applied updates, each the one-hot (worker, step).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field, replace

import pytest

from ps_server.shard.partition.machine import (
    Ack,
    Action,
    Answer,
    Apply,
    Complete,
    Contribution,
    Pull,
    StepMachine,
)
from ps_wire.errors import PushOutOfOrder, StrangerRefused
from tests.search.nodes import copied
from tests.search.simulated import At, Job, Link, Read, Update

Event = tuple[str, int, int]  # name, worker, partition; -1 where there is none


_NEXT = {At.PULLING: "pull", At.PUSHING: "push", At.LEAVING: "leave", At.GHOST: "leave"}


@dataclass(slots=True)
class World:
    job: Job
    partitions: list[StepMachine]
    weights: list[tuple[Update, ...]]
    links: dict[tuple[int, int], Link] = field(default_factory=dict)  # by (worker, partition)
    received: Counter[tuple[int, int]] = field(default_factory=Counter)  # pushes, by (worker, partition)
    copies: Counter[tuple[int, int]] = field(default_factory=Counter)  # duplicates of them
    complete: dict[int, Complete] = field(default_factory=dict)
    verdicts: dict[int, frozenset[int]] = field(default_factory=dict)
    applies: list[tuple[int, Apply]] = field(default_factory=list)  # with the partition
    reads: list[Read] = field(default_factory=list)
    faults: int = 0
    deaths: int = 0
    now_s: int = 0

    @classmethod
    def start(cls, job: Job) -> World:
        assert job.coordinated or not job.drops
        numbers = range(job.num_partitions)
        partitions = [StepMachine(gate=job.gate) for _ in numbers]
        world = cls(job, partitions, [() for _ in numbers], faults=job.faults, deaths=job.deaths)
        for worker in range(len(job.batches)):
            for number, partition in enumerate(partitions):
                assert partition.join(worker, 1, 0, 0.0) == []
                world.links[worker, number] = Link(at=At.PULLING, step=0)
            world._turn(worker)
        return world

    def fork(self) -> World:
        """A copy that can go another way; nothing is applied or read in it yet."""
        other = copy(self)
        for name in ("partitions", "weights", "links", "received", "copies", "complete", "verdicts"):
            setattr(other, name, getattr(self, name).copy())
        other.applies, other.reads = [], []
        return other

    # -- what can happen -----------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """All are gone. A step that some died in may then be left open where a coordinator decides."""
        open_steps = any(partition.staged for partition in self.partitions)
        left = open_steps and (not self.job.coordinated or any(self.honest()))
        idle = not left and not any(partition.waiting for partition in self.partitions)
        return idle and all(link.at is At.GONE for link in self.links.values())

    def events(self) -> list[Event]:
        """Everything that can happen next; none at the end, or where all are stuck."""
        found = list(self.honest())
        if self.faults:
            found += self.faulty()
        if self.deaths:
            parted = (At.LEAVING, At.GHOST, At.GONE)
            living = {worker for (worker, _), link in self.links.items() if link.at not in parted}
            found += [("die", worker, -1) for worker in sorted(living)]
        return found

    def honest(self) -> Iterator[Event]:
        for (worker, number), link in self.links.items():
            if link.at is At.GHOST:
                yield "push", worker, number
            if link.at in _NEXT:
                yield _NEXT[link.at], worker, number
        for number, partition in enumerate(self.partitions):
            if partition.version in self.verdicts and number in self.complete:
                yield "decide", -1, number

    def faulty(self) -> Iterator[Event]:
        for (worker, number), link in self.links.items():
            if link.at is At.PUSHING:
                yield "lose_ack", worker, number
                yield "reorder", worker, number
            if link.at in (At.READY, At.WAITING):
                yield "reconnect", worker, number
            if link.at in (At.READY, At.PUSHING):
                yield "pull_twice", worker, number
            if link.step > 0:
                yield "duplicate", worker, number

    def step(self, event: Event) -> None:
        """One event happens. Its partition is copied first."""
        name, worker, number = event
        self.now_s += 1
        if number >= 0:
            self.partitions[number] = copied(self.partitions[number])
        if name not in ("pull", "push", "leave", "decide", "die"):
            self.faults -= 1
        getattr(self, f"_on_{name}")(worker, number)
        self._reach_verdict()
        if worker >= 0:
            self._turn(worker)

    # -- events --------------------------------------------------------------------------------------

    def _on_pull(self, worker: int, number: int) -> None:
        link = self.links[worker, number]
        self.links[worker, number] = replace(link, at=At.WAITING)
        self._carry_out(number, self._pull(worker, number, link.step))

    def _on_push(self, worker: int, number: int) -> None:
        link = self.links[worker, number]
        self._deliver_push(worker, number)
        if link.at is At.GHOST:
            self.links[worker, number] = replace(link, at=At.LEAVING)
            return
        last = link.step + 1 == self.job.batches[worker]
        self.links[worker, number] = Link(at=At.PUSHED if last else At.PULLING, step=link.step + 1)

    def _on_leave(self, worker: int, number: int) -> None:
        self.links[worker, number] = replace(self.links[worker, number], at=At.GONE)
        self._carry_out(number, self.partitions[number].leave(worker, 1, self.now_s))

    def _on_decide(self, _: int, number: int) -> None:
        partition = self.partitions[number]
        del self.complete[number]
        verdict = self.verdicts[partition.version]
        self._carry_out(number, partition.decide(partition.version, verdict, 1.0, self.now_s))

    def _on_die(self, worker: int, _: int) -> None:
        self.deaths -= 1
        for number in range(self.job.num_partitions):
            link = self.links[worker, number]
            ghost = link.at is At.PUSHING and not link.taken
            self.links[worker, number] = replace(link, at=At.GHOST if ghost else At.LEAVING)

    def _on_lose_ack(self, worker: int, number: int) -> None:
        self._deliver_push(worker, number)
        self.links[worker, number] = replace(self.links[worker, number], taken=True)

    def _on_reorder(self, worker: int, number: int) -> None:
        """What follows the push in flight arrives before it."""
        link = self.links[worker, number]
        clock = link.step + link.taken
        for ahead in (self._push, self._pull):
            with pytest.raises(PushOutOfOrder) as refused:
                ahead(worker, number, clock + 1)
            assert refused.value.facts["clock"] == clock

    def _on_reconnect(self, worker: int, number: int) -> None:
        """The reply, or the connection on which it is awaited, is lost: the worker asks again."""
        self.links[worker, number] = replace(self.links[worker, number], at=At.PULLING)

    def _on_pull_twice(self, worker: int, number: int) -> None:
        """A copy of the answered pull arrives: answered again, or refused once its step was pushed."""
        link = self.links[worker, number]
        if link.taken:
            with pytest.raises(PushOutOfOrder):
                self._pull(worker, number, link.step)
        else:
            (answer,) = self._pull(worker, number, link.step)
            assert [(pull.worker, pull.clock) for pull in answer.pulls] == [(worker, link.step)]

    def _on_duplicate(self, worker: int, number: int) -> None:
        """Copies of the last step's frames arrive: acknowledged without effect, and refused."""
        link = self.links[worker, number]
        gone, old = link.at is At.GONE, link.step - 1
        with pytest.raises(StrangerRefused if gone else PushOutOfOrder):
            self._pull(worker, number, old)
        with pytest.raises(StrangerRefused) if gone else nullcontext():
            assert self._push(worker, number, old) == [Ack(worker=worker, step=old)]
            self.copies[worker, number] += 1

    # -- inside --------------------------------------------------------------------------------------

    def _pull(self, worker: int, number: int, clock: int) -> list[Action]:
        pull = Pull(worker=worker, incarnation=1, clock=clock, asked_s=self.now_s)
        return self.partitions[number].pull(pull)

    def _push(self, worker: int, number: int, step: int) -> list[Action]:
        nothing = self.job.abstains if self.job.gate.aggregates else self.job.abstains | self.job.withheld
        update = None if (worker, step) in nothing else (worker, step)
        version = self.links[worker, number].version
        push = Contribution(worker=worker, incarnation=1, step=step, version=version, payload=update)
        return self.partitions[number].push(push, self.now_s)

    def _deliver_push(self, worker: int, number: int) -> None:
        link = self.links[worker, number]
        actions = self._push(worker, number, link.step)
        acks = [action for action in actions if isinstance(action, Ack)]
        assert acks == [Ack(worker=worker, step=link.step)]
        (self.copies if link.taken else self.received)[worker, number] += 1
        self._carry_out(number, actions)

    def _carry_out(self, number: int, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Apply():
                    self.applies.append((number, action))
                    self.weights[number] += tuple(item.payload for item in action.contributions)
                case Answer():
                    for pull in action.pulls:
                        self._arrive(number, pull, action.version)
                case Complete():
                    self._complete(number, action)

    def _complete(self, number: int, complete: Complete) -> None:
        """The partition looks at what was pushed; alone it closes the step, else it waits for the verdict."""
        partition = self.partitions[number]
        for staged in partition.staged:
            if staged.payload in self.job.withheld:
                partition.withhold(staged.worker)
        if self.job.coordinated:
            self.complete[number] = complete
        else:
            self._carry_out(number, partition.decide(complete.step, complete.workers, 1.0, self.now_s))

    def _arrive(self, number: int, pull: Pull, version: int) -> None:
        link = self.links[pull.worker, number]
        if link.at is not At.WAITING:
            return  # it died, or its connection broke
        self.links[pull.worker, number] = replace(link, at=At.READY, version=version)
        seen = frozenset(self.weights[number])
        self.reads.append(
            Read(worker=pull.worker, partition=number, clock=pull.clock, version=version, seen=seen)
        )
        self._turn(pull.worker)

    def _turn(self, worker: int) -> None:
        """R1: the next phase begins when all partitions have come as far."""
        mine = {key: link for key, link in self.links.items() if key[0] == worker}
        places = {link.at for link in mine.values()}
        if places == {At.READY}:
            self.links |= {key: replace(link, at=At.PUSHING) for key, link in mine.items()}
        elif places == {At.PUSHED} or (places == {At.PULLING} and self.job.batches[worker] == 0):
            self.links |= {key: replace(link, at=At.LEAVING) for key, link in mine.items()}

    def _reach_verdict(self) -> None:
        """The coordinator decides a step when it is complete on all partitions."""
        if len(self.complete) == len(self.partitions):
            (step,) = {complete.step for complete in self.complete.values()}
            workers = frozenset.intersection(*(complete.workers for complete in self.complete.values()))
            late = {worker for worker in workers if (worker, step) in self.job.drops}
            self.verdicts.setdefault(step, workers - late)


def check_books(world: World) -> None:
    """Law 12, at any time: every push that was taken is in exactly one place."""
    for number, partition in enumerate(world.partitions):
        staged = Counter(item.worker for item in partition.staged)
        for worker, ledger in partition.ledgers.items():
            settled = ledger.applied + ledger.dropped + ledger.abstained
            assert settled + staged[worker] == ledger.received == world.received[worker, number]


def check_gaps(world: World) -> None:
    """Law 5, at any time: the clock gap is at most s while computing, and s + 1 when committed."""
    bound = world.job.gate.staleness
    for number, partition in enumerate(world.partitions):
        slowest = min((clock for _, clock in partition.clocks), default=0)
        for worker, clock in partition.clocks if bound is not None else ():
            link = world.links[worker, number]
            computing = link.at in (At.READY, At.PUSHING) and not link.taken
            assert clock - slowest <= (bound if computing else bound + 1)


def run(world: World, seed: int, after: Callable[[World], None] = lambda world: None) -> World:
    """Runs to the end in a seeded order in which some workers are, for a while, much faster than others."""
    rng = random.Random(seed)
    fast: set[int] = set()
    while events := world.events():
        if rng.random() < 0.05:
            fast = {worker for worker in range(len(world.job.batches)) if rng.random() < 0.5}
        preferred = [event for event in events if event[1] in fast]
        world.step(rng.choice(preferred if preferred and rng.random() < 0.97 else events))
        after(world)
    return world
