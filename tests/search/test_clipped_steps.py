"""Every reachable state of clipped steps on two shards: one scale for each step, of those who are in it.

The machines, what shards know of norms, and the ballots of the coordinator are the real ones. In between are
two streams, each in order; decisions go beside the orders of a job, so they overtake them, and each other. A
worker dies, and is evicted in two rounds; the stream of a shard breaks, and what was in it is lost but for
orders, which come again; a coordinator hands its ballots to the next one.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ps_server.agreement.clipping import Clipping, Norm, coefficient
from ps_server.agreement.gate import gate_of
from ps_server.coordinator.fleet.ballots import Ballots
from ps_server.shard.partition.inputs import Action, Complete
from ps_server.shard.partition.machine import Contribution, StepMachine
from ps_server.shard.partition.machine_state import MachineState
from ps_wire.spec.consistency import BSP
from ps_wire.v1 import coordinator_pb2 as pb
from tests.unit.ps_server.tables import group, table_spec

SHARDS, STEPS, MAX_NORM, JOB, OPENING = (0, 1), 3, 1.0, "j", 1
SPEC = table_spec("SGD", group(lr=1.0), clip_grad_norm=MAX_NORM)
LIVES, IS_DEAD, IS_FENCED, IS_OUT = "lives", "is dead", "is being fenced", "is out"


def squares_of(shard: int, workers: frozenset[int]) -> float:
    """A number that says who is in the mean, and on which shard."""
    return float(sum(16 ** (2 * worker + shard) for worker in workers))


@dataclass(frozen=True)
class Shard:
    """What one shard holds.

    Attributes:
        machine: of its partition.
        waits: the step that waits for its scale; None: none does.
        norms: what it knows of norms: by step, reported up to, epoch.
        closed: scale and workers of each step that has closed.
    """

    machine: MachineState
    waits: int | None
    norms: tuple[tuple[tuple[int, float], ...], int, int]
    closed: tuple[tuple[float, frozenset[int]], ...] = ()


@dataclass(frozen=True)
class World:
    """One state of everything.

    Attributes:
        shards: two.
        ballots: the last decision, the epoch of norms, and parts of the open one.
        up: reports on their way, by shard, in order.
        down: orders of the job on their way, by shard, in order.
        decided: decisions on their way, by shard, in any order.
        pushed: worker -> how many steps it has pushed to each shard.
        life: of worker 1, who may die.
        clocks: of it, as shards have answered.
        left: how often a worker dies, a stream breaks, a coordinator hands over from now on.
    """

    shards: tuple[Shard, Shard]
    ballots: tuple[tuple[int, float] | None, int, tuple[tuple[int, float], ...]]
    up: tuple[tuple[Norm, ...], tuple[Norm, ...]] = ((), ())
    down: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())
    decided: tuple[frozenset[tuple[int, float]], frozenset[tuple[int, float]]] = (frozenset(), frozenset())
    pushed: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    life: str = LIVES
    clocks: tuple[int | None, int | None] = (None, None)
    left: tuple[int, int, int] = (0, 0, 0)

    @property
    def done(self) -> bool:
        """Whether all steps have closed everywhere."""
        return all(len(shard.closed) == STEPS for shard in self.shards)


def put(of: tuple[Any, Any], index: int, value: object) -> Any:
    return (value, of[1]) if index == 0 else (of[0], value)


class Visit:
    """What one event does to a shard, with the real objects."""

    def __init__(self, world: World, index: int) -> None:
        self.world, self.index, self.shard = world, index, world.shards[index]
        self.machine = StepMachine(gate_of(BSP()))
        self.machine.load(self.shard.machine, 0.0)
        self.clipping = Clipping(1)
        squares, self.clipping._reported, self.clipping._membership_epoch = self.shard.norms
        self.clipping._squares = {step: {0: value} for step, value in squares}
        self.waits, self.closed = self.shard.waits, list(self.shard.closed)

    def carry_out(self, actions: list[Action]) -> None:
        """As `Cell` does: a complete step is looked at, and waits for its scale."""
        for action in actions:
            if isinstance(action, Complete) and self.machine.complete:
                workers = frozenset(item.worker for item in self.machine.staged)
                self.waits = action.step
                self.clipping.complete(action.step, 0, squares_of(self.index, workers))

    def decide(self, step: int, scale: float) -> None:
        """As `StepCloser.decide` and `Cell.decide`."""
        if not self.clipping.decided(step) or self.waits != step:
            return
        workers = frozenset(item.worker for item in self.machine.staged)
        self.closed.append((scale, workers))
        self.waits = None
        self.carry_out(self.machine.decide(step, workers, scale, 0.0))

    def norm(self, found: tuple[int, float, int]) -> Norm:
        step, squares, epoch = found
        return Norm(job=JOB, table=0, opening=OPENING, step=step, squares=squares, membership_epoch=epoch)

    def world_after(self, *, again: bool = False) -> World:
        """The state after `StepCloser.settle`; `again`: what is undecided is said once more."""
        reports = list(self.world.up[self.index])
        if again and (undecided := self.clipping.undecided()) is not None:
            reports.append(self.norm(undecided))
        while (found := self.clipping.poll()) is not None:
            reports.append(self.norm(found))
        squares = tuple((step, of[0]) for step, of in sorted(self.clipping._squares.items()))
        shard = Shard(
            machine=self.machine.dump(),
            waits=self.waits,
            norms=(squares, self.clipping._reported, self.clipping._membership_epoch),
            closed=tuple(self.closed),
        )
        world = self.world
        return replace(
            world, shards=put(world.shards, self.index, shard), up=put(world.up, self.index, tuple(reports))
        )


def ballots_of(world: World) -> Ballots:
    ballots = Ballots(len(SHARDS))
    ballots.opened(JOB, SPEC, OPENING)
    scale: Any = ballots._tables[JOB, 0].scale
    decided, scale._membership_epoch, squares = world.ballots
    scale._squares = dict(squares)
    if decided is not None:
        step, value = decided
        scale.decided = pb.Decide(job=JOB, table=0, opening=OPENING, step=step, scale=value)
    return ballots


def kept(ballots: Ballots) -> tuple[tuple[int, float] | None, int, tuple[tuple[int, float], ...]]:
    scale: Any = ballots._tables[JOB, 0].scale
    decided = None if scale.decided is None else (scale.decided.step, scale.decided.scale)
    return decided, scale._membership_epoch, tuple(sorted(scale._squares.items()))


def begun(left: tuple[int, int, int]) -> World:
    machine = StepMachine(gate_of(BSP()))
    for worker in (0, 1):
        machine.join(worker, 1, 0, 0.0)
    shard = Shard(machine=machine.dump(), waits=None, norms=((), -1, 0))
    world = World(shards=(shard, shard), ballots=(None, 0, ()), left=left)
    return replace(world, ballots=kept(ballots_of(world)))


def contribution(worker: int, step: int) -> Contribution:
    return Contribution(worker=worker, incarnation=1, step=step, version=step, weight=1.0, payload=b"g")


# -- events ------------------------------------------------------------------------------------------------


def pushes(world: World) -> Iterator[World]:
    """A worker pushes its next step, once the one before has closed on both shards."""
    for worker, shard in itertools.product((0, 1), SHARDS):
        step = world.pushed[worker][shard]
        if (worker == 1 and world.life != LIVES) or step == STEPS:
            continue
        if any(len(it.closed) < step for it in world.shards):
            continue
        visit = Visit(world, shard)
        visit.carry_out(visit.machine.push(contribution(worker, step), 0.0))
        after = visit.world_after()
        counts = put(world.pushed[worker], shard, step + 1)
        yield replace(after, pushed=put(after.pushed, worker, counts))


def reports(world: World) -> Iterator[World]:
    for index in SHARDS:
        if not world.up[index]:
            continue
        report, *rest = world.up[index]
        ballots, decided = ballots_of(world), world.decided
        for made in ballots.reported(index, report):
            for shard in made.shards:
                one = made.order.decide.step, made.order.decide.scale
                decided = put(decided, shard, decided[shard] | {one})
        yield replace(world, up=put(world.up, index, tuple(rest)), ballots=kept(ballots), decided=decided)


def decisions(world: World) -> Iterator[World]:
    for index in SHARDS:
        for step, scale in world.decided[index]:
            visit = Visit(world, index)
            visit.decide(step, scale)
            after = visit.world_after()
            yield replace(after, decided=put(after.decided, index, after.decided[index] - {(step, scale)}))


def orders(world: World) -> Iterator[World]:
    for index in SHARDS:
        if not world.down[index]:
            continue
        (kind, *what), *rest = world.down[index]
        visit = Visit(world, index)
        clocks = world.clocks
        if kind == "fence":
            clocks = put(clocks, index, visit.machine.fence(1, 1))
        else:  # as `ShardTable.evict`
            (limit,) = what
            visit.clipping.reopen(1)
            visit.carry_out(visit.machine.evict(1, 1, limit, 0.0))
        after = visit.world_after()
        yield replace(after, down=put(after.down, index, tuple(rest)), clocks=clocks)


def verdict(world: World) -> Iterator[World]:
    """Worker 1 dies; it is fenced; once both shards have said where it was, it is out."""
    deaths, breaks, heirs = world.left
    if world.life == LIVES and deaths and not world.done:
        yield replace(world, life=IS_DEAD, left=(deaths - 1, breaks, heirs))
    if world.life == IS_DEAD:
        down: Any = tuple((*world.down[index], ("fence",)) for index in SHARDS)
        yield replace(world, life=IS_FENCED, down=down)
    first, second = world.clocks
    if world.life == IS_FENCED and first is not None and second is not None:
        down = tuple((*world.down[index], ("evict", min(first, second))) for index in SHARDS)
        yield replace(world, life=IS_OUT, down=down)


def disasters(world: World) -> Iterator[World]:
    """What was on its way is lost, but for orders; who follows again says what it has no scale for."""
    deaths, breaks, heirs = world.left
    if breaks:
        for index in SHARDS:
            lost = replace(
                world,
                up=put(world.up, index, ()),
                decided=put(world.decided, index, frozenset()),
                left=(deaths, breaks - 1, heirs),
            )
            yield Visit(lost, index).world_after(again=True)
    if heirs:
        successor = Ballots(len(SHARDS))
        successor.opened(JOB, SPEC, OPENING)
        successor.load(ballots_of(world).dump())
        after = replace(
            world,
            up=((), ()),
            decided=(frozenset(), frozenset()),
            ballots=kept(successor),
            left=(deaths, breaks, heirs - 1),
        )
        for index in SHARDS:
            after = Visit(after, index).world_after(again=True)
        yield after


HONEST = (pushes, reports, decisions, orders)


# -- laws --------------------------------------------------------------------------------------------------


def check(world: World) -> None:
    """A step has one scale, and it is that of the norm of those who are in it, on all shards."""
    first, second = (shard.closed for shard in world.shards)
    for (scale, workers), (other_scale, other_workers) in zip(first, second, strict=False):
        assert scale == other_scale, "two shards have closed a step with different scales"
        squares = squares_of(0, workers) + squares_of(1, other_workers)
        assert scale == coefficient(MAX_NORM, squares), "who is in the norm is not who is in the step"
        assert workers == other_workers, "a push counts on one shard and not on the other"
    for shard in world.shards:
        assert shard.machine.version == len(shard.closed), "a step closes once"


def search(left: tuple[int, int, int]) -> tuple[int, int, set[frozenset[int]]]:
    """Visits every state; how many there are, how many are ends, and who was in any last step."""
    start = begun(left)
    seen, queue = {key(start)}, deque([start])
    ends, last = 0, set()
    while queue:
        world = queue.popleft()
        check(world)
        going_on = [*itertools.chain.from_iterable(event(world) for event in HONEST), *verdict(world)]
        honest = [after for after in going_on if after.left == world.left]
        assert world.done or honest, f"stuck: {world}"
        if world.done:
            ends += 1
            last.add(world.shards[0].closed[-1][1])
        for after in [*going_on, *disasters(world)]:
            if (state := key(after)) not in seen:
                seen.add(state)
                queue.append(after)
    return len(seen), ends, last


def key(world: World) -> object:
    """The whole of it, but for counters."""
    shards = tuple(
        (
            shard.machine.version,
            tuple(sorted((worker, it.clock, it.fenced) for worker, it in shard.machine.members.items())),
            tuple((item.worker, item.step) for item in shard.machine.staged),
            shard.waits,
            shard.norms,
            shard.closed,
        )
        for shard in world.shards
    )
    return (shards, *(getattr(world, name) for name in World.__dataclass_fields__ if name != "shards"))


@pytest.mark.parametrize(
    ("left", "states", "ends"),
    [
        ((0, 1, 0), 474, 10),
        ((0, 0, 1), 179, 2),
        ((1, 0, 0), 1615, 42),
        ((1, 1, 0), 9386, 356),
        ((1, 0, 1), 3662, 93),
    ],
    ids=str,
)
def test_clipped_steps_have_one_scale_of_those_who_are_in_them(left, states, ends):
    """Whatever comes between, in any order (deaths, streams, coordinators); and somebody can always go on."""
    found, found_ends, last = search(left)
    assert found >= states, found
    assert found_ends >= ends, found_ends
    assert frozenset({0, 1}) in last
    assert (frozenset({0}) in last) == bool(left[0]), "a step closes without who was evicted"


def test_the_search_sees_an_evicted_worker_in_the_norm(monkeypatch):
    """Where shards do not take back what they had reported of it."""
    monkeypatch.setattr(Clipping, "reopen", lambda *_: None)
    with pytest.raises(AssertionError):
        search((1, 0, 0))
