"""A snapshot's cut is exact and never gets stuck: every reachable state of small jobs is visited.

As `test_cut`, but nobody is held before the cut is known: each worker is asked, says which step it has not
begun, begins none from there on until it hears that all partitions are armed, and captures its state then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from ps_server.agreement.cut_points import clocks_of_snapshot, first_steps, workers_beyond
from ps_server.agreement.gate import gate_of
from ps_wire.spec.consistency import ASP, BSP, SSP, Consistency
from tests.unit.ps_server.shard.partition.cut_world import KEY, World, search


@dataclass
class SnapshotWorld(World):
    begun: set[int] = field(default_factory=set)
    promised: dict[int, int] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    captured: dict[int, int] = field(default_factory=dict)

    def key(self) -> object:
        return (
            super().key(),
            frozenset(self.begun),
            tuple(sorted(self.promised.items())),
            frozenset(self.told),
            tuple(sorted(self.captured.items())),
        )

    def fork(self) -> SnapshotWorld:
        made = super().fork()
        assert isinstance(made, SnapshotWorld)
        made.begun, made.told = set(self.begun), set(self.told)
        made.promised, made.captured = dict(self.promised), dict(self.captured)
        return made

    def honest(self) -> Iterator[Callable[[World], None]]:
        for worker in self.working():
            if worker not in self.begun:
                if not self.waits(worker):
                    yield partial(SnapshotWorld.begin, worker=worker)
                continue
            for place in sorted(self.unpushed[worker]):
                yield partial(World.push, worker=worker, place=place)
            if not self.unpushed[worker] and not self.pulling[worker]:
                yield partial(World.pull, worker=worker)
            elif self.pulling[worker] and all(worker in cell.answered for cell in self.cells):
                yield partial(SnapshotWorld.go_on, worker=worker)
        yield from self.coordination()

    def coordination(self) -> Iterator[Callable[[World], None]]:
        for worker in self.working():
            if worker not in self.promised:
                yield partial(SnapshotWorld.ask, worker=worker)
            elif len(self.armed) == len(self.cells) and worker not in self.told:
                yield partial(SnapshotWorld.tell, worker=worker)
        if all(worker in self.promised for worker in self.working()):
            for place in range(len(self.cells)):
                if place not in self.armed:
                    yield partial(SnapshotWorld.arm, place=place)

    def waits(self, worker: int) -> bool:
        return (
            worker in self.promised and worker not in self.told and self.step[worker] >= self.promised[worker]
        )

    def begin(self, worker: int) -> None:
        self.begun.add(worker)
        if worker in self.told and self.step[worker] >= self.limits[worker]:
            self.captured.setdefault(worker, self.step[worker])

    def ask(self, worker: int) -> None:
        self.promised[worker] = self.step[worker] + (worker in self.begun)

    def tell(self, worker: int) -> None:
        self.told.add(worker)

    def go_on(self, worker: int) -> None:
        self.begun.discard(worker)
        super().go_on(worker)

    def arm(self, place: int) -> None:
        if self.limits is None:
            asked = {worker: self.promised[worker] for worker in self.working()}
            self.limits = clocks_of_snapshot(gate_of(self.model), asked)
        self.armed.add(place)
        cut = self.cells[place].cut
        beyond = workers_beyond(cut.hold(KEY), self.limits)
        if beyond:  # only one that has left can be: the coordinator gives the cut up, and asks again
            assert set(beyond) <= self.gone
            self.give_up()
            return
        cut.arm(KEY, self.limits)
        self.cells[place].go_on()

    def give_up(self) -> None:
        self.limits = None
        for known in (self.armed, self.promised, self.told, self.captured):
            known.clear()
        for cell in self.cells:
            cell.cut.end(KEY)
            cell.sent = None
            cell.go_on()

    def check(self) -> None:
        super().check()
        for worker, step in self.captured.items():
            assert step == self.limits[worker], "state is captured at the cut, not behind it"


SMALL = [(model, 2, 1, 1, 1) for model in (BSP(), SSP(0), SSP(1), SSP(2), ASP())]
LARGER = [(BSP(), 2, 2, 1, 0), (SSP(1), 2, 2, 1, 0), (BSP(), 2, 1, 2, 0), (SSP(1), 2, 1, 2, 0)]


@pytest.mark.parametrize(("model", "workers", "partitions", "steps", "leaves"), SMALL + LARGER, ids=str)
def test_a_snapshots_cut_is_exact_and_nobody_gets_stuck(
    model: Consistency, workers: int, partitions: int, steps: int, leaves: int
):
    states, _ = search(SnapshotWorld.start(model, workers, partitions, steps, leaves))
    assert states > 100


def test_clocks_of_a_snapshot():
    asked = {0: 5, 1: 9, 2: 3}
    assert clocks_of_snapshot(gate_of(BSP()), asked) == {0: 9, 1: 9, 2: 9}
    assert clocks_of_snapshot(gate_of(SSP(2)), asked) == {0: 6, 1: 9, 2: 6}
    assert clocks_of_snapshot(gate_of(ASP()), asked) == asked
    assert clocks_of_snapshot(gate_of(BSP()), {}) == {}


def test_who_had_finished_before_its_step_of_a_cut_has_none_to_take_again():
    """Under ssp and asp it would go on at the largest step of the others, which it may have taken."""
    steps = {0: 3, 1: 5}
    assert first_steps(gate_of(ASP()), steps, [0], {1: 4, 2: 9}) == {0: 3, 1: 4, 2: 9}
    assert first_steps(gate_of(BSP()), {0: 5, 1: 5}, [0], {1: 4, 2: 2}) == {0: 5, 1: 5, 2: 5}


def test_who_finishes_behind_the_cut_is_still_of_it():
    """Its steps from there on are to be taken again: one that trained at the cut is waited for."""
    assert first_steps(gate_of(SSP(1)), {0: 3, 1: 5}, [0, 1], {1: 7}) == {0: 3, 1: 5}
