"""Shards and choosers for a search of all states: the real ones, each state of them made and tried only once.

A node is a shard with one partition: its state machine, the cut in front of it and, with backup workers, its
quorum. Nodes are kept by what decides their future, so that two with the same future are the same object, and
what an input leads to is computed once per node. Counters are no part of it; law 12 is checked at every input
that is computed, as a difference.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import pytest

from ps_server.agreement.attendance import CatchUp, Choose
from ps_server.agreement.chooser import Chooser
from ps_server.agreement.gate import Gate
from ps_server.agreement.tally import StepTally
from ps_server.shard.partition.backup_machine import machine_of
from ps_server.shard.partition.cut import PartitionCut
from ps_server.shard.partition.machine import (
    Ack,
    Action,
    Answer,
    Apply,
    Complete,
    Contribution,
    Ledger,
    Pull,
    StepMachine,
    _Member,
)
from ps_wire.errors import PsError, StaleIncarnation, StrangerRefused

_of_member, _of_ledger = attrgetter(*_Member.__slots__), attrgetter(*Ledger.__slots__)
CUT = (0, 1)
NOBODY = -1  # trains: what a cut has then may lack a step that died with its worker
Input = tuple[Any, ...]  # its name, then what it takes
Output = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class Node:
    number: int
    machine: StepMachine
    cut: PartitionCut
    quorum: StepTally | None
    kept: frozenset[int]  # versions that are older than the weights
    live: dict[int, tuple[int, int]]  # worker -> incarnation, clock; of those who are not fenced
    memo: dict[Input, tuple[Node, tuple[Output, ...]]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ChooserNode:
    chooser: Chooser
    memo: dict[Input, tuple[ChooserNode, tuple[Input, ...]]] = field(default_factory=dict)
    swapped: ChooserNode | None = None


@dataclass(slots=True)
class Nodes:
    """All that were met."""

    gate: Gate
    known: dict[object, Node] = field(default_factory=dict)
    choosers: dict[object, ChooserNode] = field(default_factory=dict)

    # -- shards --------------------------------------------------------------------------------------

    def start(self, workers: int) -> Node:
        machine = machine_of(self.gate)
        for worker in range(workers):
            assert machine.join(worker, 1, 0, 0.0) == []
        quorum = StepTally(1, self.gate.backup) if self.gate.backup else None
        if quorum is not None:
            quorum.stands(0, machine.standing)
            assert quorum.poll() is None
        return self._node(machine, PartitionCut(machine), quorum, frozenset())

    def step(self, node: Node, given: Input) -> tuple[Node, tuple[Output, ...]]:
        found = node.memo.get(given)
        if found is None:
            machine = copied(node.machine)
            cut = copy(node.cut)
            visit = _Visit(machine, cut, self._quorum(node), node.kept)
            cut.machine = machine
            cut._kept = [replace(kept, again=_Again(visit, kept.again.given)) for kept in cut._kept]
            before, version = _books(machine), machine.version
            visit.give(given)
            visit.report()
            assert _books(machine) == before, ("law 12", given, node.machine)
            assert machine.version >= version
            self._check_gap(machine)
            found = node.memo[given] = (
                self._node(machine, cut, visit.quorum, visit.kept),
                tuple(visit.outputs),
            )
        return found

    def _check_gap(self, machine: StepMachine) -> None:
        """Law 5: what is committed is at most s + 1 apart; who got its weights, at most s."""
        if self.gate.staleness is None or self.gate.backup:
            return
        clocks = dict(machine.clocks)
        slowest = min(clocks.values(), default=0)
        for worker, clock in clocks.items():
            assert clock - slowest <= self.gate.staleness + 1, ("law 5", machine)
            assert worker not in machine._waiting or not self.gate.opens(clock, machine.version, slowest)

    def _quorum(self, node: Node) -> StepTally | None:
        if node.quorum is None:
            return None
        made = StepTally(1, self.gate.backup)
        made.stands(0, node.machine.standing)
        made._reported = node.quorum._reported
        return made

    def _node(
        self, machine: StepMachine, cut: PartitionCut, quorum: StepTally | None, kept: frozenset[int]
    ) -> Node:
        members = tuple(
            (worker, it.incarnation, it.clock, it.prepared, it.fenced, it.late, it.asked)
            for worker, it in sorted(machine._members.items())
        )
        key = (
            machine.version,
            machine.newest_clock,
            members,
            tuple((item.worker, item.incarnation, item.step, item.abstains) for item in machine.staged),
            tuple((pull.worker, pull.clock) for pull in machine.waiting),
            getattr(machine, "_chosen", None),
            cut.key,
            None if cut._limits is None else tuple(sorted(cut._limits.items())),
            tuple((kept.worker, kept.step, kept.pushes) for kept in cut._kept),
            None if quorum is None else quorum._reported,
            kept,
        )
        if key not in self.known:
            live = {worker: (it[0], it[1]) for worker, *it in members if not it[3]}
            self.known[key] = Node(len(self.known), machine, cut, quorum, kept, live)
        return self.known[key]

    # -- the coordinator's chooser -------------------------------------------------------------------

    def start_chooser(self) -> ChooserNode | None:
        return self._chooser_node(Chooser(self.gate.backup, (0, 1))) if self.gate.backup else None

    def choose(self, node: ChooserNode, given: Input) -> tuple[ChooserNode, tuple[Input, ...]]:
        """What the chooser is after reported, hold or release, and its orders, with their shards."""
        found = node.memo.get(given)
        if found is None:
            chooser = copy(node.chooser)
            chooser._caught, chooser._reports = dict(chooser._caught), dict(chooser._reports)
            name, *what = given
            sent = [(*_as_input(choice), shards) for choice, shards in getattr(chooser, name)(*what) or ()]
            found = node.memo[given] = self._chooser_node(chooser), tuple(sent)
        return found

    def swap(self, node: ChooserNode | None) -> ChooserNode | None:
        """The same with the two shards in each other's place."""
        if node is not None and node.swapped is None:
            chooser = copy(node.chooser)
            chooser._reports = {1 - shard: report for shard, report in chooser._reports.items()}
            node.swapped = self._chooser_node(chooser)
        return None if node is None else node.swapped

    def _chooser_node(self, chooser: Chooser) -> ChooserNode:
        key = (
            chooser.last,
            chooser._held,
            tuple(sorted((worker, it.late, it.step) for worker, it in chooser._caught.items())),
            tuple(chooser._reports.get(shard) for shard in (0, 1)),
        )
        if key not in self.choosers:
            self.choosers[key] = ChooserNode(chooser)
        return self.choosers[key]


def _as_input(choice: Choose | CatchUp) -> Input:
    if isinstance(choice, Choose):
        return "choose", (choice.step, choice.workers)
    return "catch_up", (choice.late, choice.step)


def copied(machine: StepMachine) -> StepMachine:
    """A machine that can go another way."""
    made = copy(machine)
    made._members = {worker: _Member(*_of_member(it)) for worker, it in machine._members.items()}
    made.ledgers = {worker: Ledger(*_of_ledger(it)) for worker, it in machine.ledgers.items()}
    made._staged, made.tau = dict(machine._staged), machine.tau.copy()
    made._waiting, made._counts = copy(machine._waiting), copy(machine._counts)
    return made


def _books(machine: StepMachine) -> int:
    """Pushes received that are in no place: none."""
    ledgers = machine.ledgers.values()
    settled = sum(it.applied + it.dropped + it.abstained for it in ledgers) + len(machine.staged)
    return sum(it.received for it in ledgers) - settled


@dataclass(slots=True)
class _Again:
    """An input that a cut keeps back."""

    visit: _Visit
    given: Input

    def __call__(self) -> None:
        try:
            self.visit.give(self.given)
        except PsError as error:
            self.visit.outputs.append(("refused", self.given, type(error).__name__))


@dataclass(slots=True)
class _Visit:
    """One input to a node, and what comes out of it."""

    machine: StepMachine
    cut: PartitionCut
    quorum: StepTally | None
    kept: frozenset[int]
    outputs: list[Output] = field(default_factory=list)
    going: bool = False

    def give(self, given: Input) -> None:
        name, *what = given
        getattr(self, f"_on_{name}")(given, *what)

    def _on_follow(self, _: Input) -> None:
        """A shard follows again: it says once more what something may follow from."""
        if self.quorum is not None and (report := self.quorum.now()) is not None:
            self.outputs.append(("report", report))

    def report(self) -> None:
        if self.quorum is not None:
            self.quorum.stands(0, self.machine.standing)
            report = self.quorum.poll()
            if report is not None:
                self.outputs.append(("report", report))

    def _on_push(self, given: Input, worker: int, incarnation: int, step: int, abstains: bool) -> None:
        if self.cut.keeps(worker, step, _Again(self, given), pushes=True):
            return
        push = Contribution(
            worker=worker, incarnation=incarnation, step=step, payload=None if abstains else given
        )
        self._carry_out(self.machine.push(push, 0.0))

    def _on_late_push(self, _: Input, worker: int, incarnation: int, step: int) -> None:
        """Law 14: behind a fence nothing is taken."""
        push = Contribution(worker=worker, incarnation=incarnation, step=step, payload="late")
        with pytest.raises((StaleIncarnation, StrangerRefused)):
            self.machine.push(push, 0.0)

    def _on_pull(self, given: Input, worker: int, incarnation: int, clock: int) -> None:
        if not self.cut.keeps(worker, clock, _Again(self, given), pushes=False):
            self._carry_out(self.machine.pull(Pull(worker=worker, incarnation=incarnation, clock=clock)))

    def _on_prepare(self, _: Input, worker: int, incarnation: int) -> None:
        self.cut.leave(worker)
        self.outputs.append(("answer", self.machine.prepare(worker, incarnation)))
        self.kept &= self.machine.needs()

    def _on_enter(self, _: Input, worker: int, incarnation: int, step: int) -> None:
        self.cut.leave(worker)
        self._carry_out(self.machine.join(worker, incarnation, step, 0.0))
        self.outputs.append(("answer", 0))

    def _on_leave(self, _: Input, worker: int, incarnation: int) -> None:
        self.cut.leave(worker)
        self._carry_out(self.machine.leave(worker, incarnation, 0.0))
        self.outputs.append(("answer", 0))

    def _on_fence(self, _: Input, worker: int, incarnation: int) -> None:
        clock = self.machine.fence(worker, incarnation)
        assert clock is not None
        self.cut.leave(worker)
        self.outputs.append(("answer", clock))

    def _on_evict(self, _: Input, worker: int, incarnation: int, limit: int) -> None:
        mixed = self.machine.mixed_steps
        actions = self.machine.evict(worker, incarnation, limit, 0.0)
        if self.machine.mixed_steps > mixed:
            self.outputs.append(("mixed", worker, incarnation, limit))
        self._carry_out(actions)
        self.outputs.append(("answer", 0))

    def _on_choose(self, _: Input, step: int, workers: frozenset[int]) -> None:
        self._carry_out(self.machine.choose(step, workers, 0.0))

    def _on_catch_up(self, _: Input, late: Any, step: int) -> None:
        self._carry_out(self.machine.catch_up(late, step, 0.0))

    def _on_hold(self, _: Input) -> None:
        self.outputs.append(("held", tuple(sorted(self.cut.hold(CUT).items()))))

    def _on_arm(self, _: Input, limits: tuple[tuple[int, int], ...]) -> None:
        self.cut.arm(CUT, dict(limits))
        self._go_on()

    def _on_end(self, _: Input) -> None:
        self.cut.end(CUT)
        self._go_on()
        self.outputs.append(("ended",))

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Apply(contributions=applied):
                    self.outputs += [("applied", it.worker, it.incarnation, it.step) for it in applied]
                case Ack(worker=worker, step=step):
                    self.outputs.append(("ack", worker, step))
                case Answer(version=version):
                    assert version == self.machine.version or version in self.kept, "it is not there any more"
                    self.outputs += [("pulled", it.worker, it.incarnation, version) for it in action.pulls]
                case Complete(step=step):
                    workers = frozenset(item.worker for item in self.machine.staged)
                    self.outputs.append(("closed", step, workers))
                    self.kept |= {step} & self.machine.needs()
                    self._carry_out(self.machine.decide(step, workers, 1.0, 0.0))
        self._go_on()
        self.kept &= self.machine.needs()

    def _go_on(self) -> None:
        """As `CellCut.go_on`."""
        if self.going:
            return
        self.going = True
        while not self.cut.idle:
            if self.cut.moment:
                limits = self.cut._limits or {}
                if limits and self.machine.clocks and self.machine.gate.aggregates:
                    assert self.machine.version == max(limits.values())
                self.outputs.append(("sent", self.machine.version if self.machine.clocks else NOBODY))
                self.cut.end(CUT)
            kept = self.cut.next()
            if kept is None:
                break
            kept.again()
        self.going = False
