"""All states of workers, cells and one cut: a small world that a search walks through."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from ps_server.agreement.cut_points import clocks_of_cut
from ps_server.agreement.gate import gate_of
from ps_server.shard.partition.cut import PartitionCut
from ps_server.shard.partition.machine import Action, Answer, Apply, Complete, Contribution, Pull, StepMachine
from ps_wire.spec.consistency import BSP, Consistency
from tests.search.nodes import copied

KEY = 7, 1


class Cell:
    """A partition with its cut, and the set of updates that are in its weights."""

    def __init__(self, model: Consistency, num_workers: int) -> None:
        self.machine = StepMachine(gate_of(model))
        self.cut = PartitionCut(self.machine)
        self.weights: frozenset[tuple[int, int]] = frozenset()
        self.answered: set[int] = set()
        self.sent: frozenset[tuple[int, int]] | None = None
        self.live_then: frozenset[int] = frozenset()
        for worker in range(num_workers):
            self.machine.join(worker, 1, 0, 0.0)

    def fork(self) -> Cell:
        made = copy.copy(self)
        made.machine, made.answered = copied(self.machine), set(self.answered)
        made.cut = copy.copy(self.cut)
        made.cut.machine, made.cut._kept = made.machine, list(self.cut._kept)
        return made

    def push(self, worker: int, step: int) -> None:
        again = partial(Cell.push, worker=worker, step=step)
        if not self.cut.keeps(worker, step, again, pushes=True):
            item = Contribution(worker=worker, incarnation=1, step=step, payload=(worker, step))
            self.carry_out(self.machine.push(item, 0.0))

    def pull(self, worker: int, clock: int) -> None:
        again = partial(Cell.pull, worker=worker, clock=clock)
        if not self.cut.keeps(worker, clock, again, pushes=False):
            self.carry_out(self.machine.pull(Pull(worker=worker, incarnation=1, clock=clock)))

    def leave(self, worker: int) -> None:
        self.cut.leave(worker)
        self.carry_out(self.machine.leave(worker, 1, 0.0))

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Apply):
                self.weights |= {item.payload for item in action.contributions}
            elif isinstance(action, Answer):
                self.answered |= {pull.worker for pull in action.pulls}
            elif isinstance(action, Complete):
                self.carry_out(self.machine.decide(action.step, action.workers, 1.0, 0.0))
        self.go_on()

    def go_on(self) -> None:
        while True:
            if self.cut.moment:
                assert self.sent is None
                self.sent = self.weights
                self.live_then = frozenset(worker for worker, _ in self.machine.clocks)
                self.cut.end(KEY)
            kept = self.cut.next()
            if kept is None:
                return
            kept.again(self)

    def key(self) -> object:
        machine, cut = self.machine, self.cut
        return (
            machine.version,
            machine.clocks,
            tuple((item.worker, item.step) for item in machine.staged),
            tuple((pull.worker, pull.clock) for pull in machine.waiting),
            cut.key,
            tuple((kept.worker, kept.step) for kept in cut._kept),
            self.weights,
            frozenset(self.answered),
            self.sent,
        )


@dataclass
class World:
    model: Consistency
    steps: int
    leaves: int
    cells: list[Cell]
    step: list[int]
    unpushed: list[set[int]]
    pulling: list[bool]
    gone: set[int] = field(default_factory=set)
    held: dict[int, dict[int, int]] = field(default_factory=dict)
    limits: dict[int, int] | None = None
    armed: set[int] = field(default_factory=set)

    @classmethod
    def start(cls, model: Consistency, workers: int, partitions: int, steps: int, leaves: int) -> World:
        cells = [Cell(model, workers) for _ in range(partitions)]
        every = [set(range(partitions)) for _ in range(workers)]
        return cls(model, steps, leaves, cells, [0] * workers, every, [False] * workers)

    def fork(self) -> World:
        made = copy.copy(self)
        made.cells = [cell.fork() for cell in self.cells]
        made.unpushed = [set(places) for places in self.unpushed]
        made.step, made.pulling = list(self.step), list(self.pulling)
        made.gone, made.held, made.armed = set(self.gone), dict(self.held), set(self.armed)
        return made

    def key(self) -> object:
        return (
            tuple(cell.key() for cell in self.cells),
            tuple(self.step),
            tuple(map(frozenset, self.unpushed)),
            tuple(self.pulling),
            frozenset(self.gone),
            tuple(sorted(self.held)),
            tuple(sorted((self.limits or {}).items())),
            frozenset(self.armed),
            self.leaves,
        )

    def working(self) -> list[int]:
        return [worker for worker in range(len(self.step)) if worker not in self.gone]

    def honest(self) -> Iterator[Callable[[World], None]]:
        """What brings somebody further."""
        for worker in self.working():
            for place in sorted(self.unpushed[worker]):
                yield partial(World.push, worker=worker, place=place)
            if not self.unpushed[worker] and not self.pulling[worker]:
                yield partial(World.pull, worker=worker)
            elif self.pulling[worker] and all(worker in cell.answered for cell in self.cells):
                yield partial(World.go_on, worker=worker)
        for place in range(len(self.cells)):
            if place not in self.held:
                yield partial(World.hold, place=place)
            elif len(self.held) == len(self.cells) and place not in self.armed:
                yield partial(World.arm, place=place)

    def events(self) -> Iterator[Callable[[World], None]]:
        yield from self.honest()
        if self.leaves:
            for worker in self.working():
                yield partial(World.leave_early, worker=worker)

    def push(self, worker: int, place: int) -> None:
        self.unpushed[worker].remove(place)
        self.cells[place].push(worker, self.step[worker])

    def pull(self, worker: int) -> None:
        self.pulling[worker] = True
        for cell in self.cells:
            cell.answered.discard(worker)
        for cell in self.cells:
            cell.pull(worker, self.step[worker] + 1)

    def go_on(self, worker: int) -> None:
        self.pulling[worker] = False
        self.step[worker] += 1
        if self.step[worker] == self.steps + worker:  # unequal batches
            self.leave(worker)
        else:
            self.unpushed[worker] = set(range(len(self.cells)))

    def leave_early(self, worker: int) -> None:
        self.leaves -= 1
        self.leave(worker)

    def leave(self, worker: int) -> None:
        self.gone.add(worker)
        self.unpushed[worker], self.pulling[worker] = set(), False
        for cell in self.cells:
            cell.leave(worker)

    def hold(self, place: int) -> None:
        self.held[place] = self.cells[place].cut.hold(KEY)

    def arm(self, place: int) -> None:
        if self.limits is None:
            newest: dict[int, int] = {}
            for clocks in self.held.values():
                for worker, clock in clocks.items():
                    newest[worker] = max(clock, newest.get(worker, 0))
            self.limits = clocks_of_cut(isinstance(self.model, BSP), newest)
        self.armed.add(place)
        self.cells[place].cut.arm(KEY, self.limits)
        self.cells[place].go_on()

    @property
    def done(self) -> bool:
        return not self.working() and all(cell.sent is not None for cell in self.cells)

    def check(self) -> None:
        """What was sent is, of each worker that was live then, exactly the pushes below its c."""
        for cell in self.cells:
            if cell.sent is None or self.limits is None:
                continue
            for worker in cell.live_then:
                steps = {step for other, step in cell.sent if other == worker}
                assert steps == set(range(self.limits[worker])), (worker, steps, self.limits)


def search(start: World) -> tuple[int, int]:
    """Visits every reachable state; returns how many there are, and in how many something is kept back."""
    seen, queue = {start.key()}, deque([start])
    kept = 0
    while queue:
        world = queue.popleft()
        kept += any(cell.cut._kept for cell in world.cells)
        assert world.done or any(world.honest()), f"stuck: {world.key()}"
        for event in world.events():
            after = world.fork()
            event(after)
            after.check()
            if (state := after.key()) not in seen:
                seen.add(state)
                queue.append(after)
    return len(seen), kept
