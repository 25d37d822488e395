"""Visits every state of a small job, and says so if there is one in which nobody can go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.search.workers import COMES, DEAD, GONE, PULLING, PUSHED, PUSHING, SHARDS, TRAINS, WAITING
from tests.search.world import Moves, Worker, World


@dataclass(slots=True, kw_only=True)
class Search(Moves):
    """A small job: `run` visits every reachable state.

    Attributes:
        steps: pushes of each worker that is there from the start.
        late: of each that comes later.
        deaths, pauses, breaks, cuts, losses: how many of each may happen.
        states, ends: what was visited.
    """

    steps: tuple[int, ...]
    late: tuple[int, ...] = ()
    deaths: int = 0
    pauses: int = 0
    breaks: int = 0
    cuts: int = 0
    losses: int = 0
    states: int = 0
    ends: int = 0

    def run(self) -> None:
        start = self.nodes.start(len(self.steps))
        first = World(
            nodes=(start, start),
            workers=(
                *(Worker(TRAINS, 1, left) for left in self.steps),
                *(Worker(COMES, 0, left) for left in self.late),
            ),
            chooser=self.nodes.start_chooser(),
            deaths=self.deaths,
            pauses=self.pauses,
            breaks=self.breaks,
            cuts=self.cuts,
            losses=self.losses,
        )
        seen, queue = {first}, deque([first])
        while queue:
            world = queue.popleft()
            honest = list(self._honest(world))
            done = self._done(world)
            assert done or honest, f"stuck: {world}"
            if done:
                self.ends += 1
            for event in (*honest, *self._faults(world)):
                after = self._canonical(event[0](self, world, *event[1:]))
                if after not in seen:
                    seen.add(after)
                    queue.append(after)
        self.states = len(seen)

    def _canonical(self, world: World) -> World:
        """Shards are alike: of a state and the one with both exchanged, one is searched."""
        first, second = world.nodes
        if first.number <= second.number:
            return world
        return world._replace(
            nodes=(second, first),
            workers=tuple(it._replace(at=it.at[::-1]) for it in world.workers),
            chooser=self.nodes.swap(world.chooser),
            down=world.down[::-1],
            up=world.up[::-1],
            cut=tuple(it[::-1] if isinstance(it, tuple) else it for it in world.cut),
            alone=frozenset((1 - shard, *rest) for shard, *rest in world.alone),
            closed=frozenset((1 - shard, step, workers) for shard, step, workers in world.closed),
        )

    def _done(self, world: World) -> bool:
        over = all(worker.life in (GONE, DEAD) for worker in world.workers)
        if not over or world.queue or any((*world.down, *world.up)):
            return False
        if any(node.live for node in world.nodes):
            return False
        assert not any(node.machine.staged for node in world.nodes), world
        assert not world.alone, ("what counts, counts everywhere", world)
        assert not world.closed, world
        assert not world.cut, world
        return True

    # -- what can happen -----------------------------------------------------------------------------

    def _honest(self, world: World) -> Iterator[tuple[Any, ...]]:
        for number, worker in enumerate(world.workers):
            if worker.life in (COMES, DEAD) and not worker.asked:
                yield Moves.ask, number
            if worker.life == TRAINS:
                for shard in SHARDS:
                    at = worker.at[shard]
                    if at in (PULLING, PUSHING) and self.heard(world, number, shard):
                        yield (Moves.pull if at == PULLING else Moves.push), number, shard
        for shard in SHARDS:
            if world.down[shard]:
                yield Moves.deliver, shard
            if world.up[shard]:
                yield Moves.take, shard

    def _faults(self, world: World) -> Iterator[tuple[Any, ...]]:
        for number, worker in enumerate(world.workers):
            if worker.life == TRAINS and not worker.asked:
                if world.deaths:
                    yield Moves.die, number
                if world.pauses:
                    yield Moves.pause, number
            for shard in SHARDS:
                at = worker.at[shard]
                if at == PUSHING and not self.heard(world, number, shard):
                    late = ("late_push", number, worker.incarnation, worker.step)
                    assert self.nodes.step(world.nodes[shard], late)[0] is world.nodes[shard]
                elif worker.life == DEAD and at == PUSHING:
                    yield Moves.push, number, shard
                waits = worker.life == TRAINS and (at >= 0 or at in (WAITING, PUSHED))
                if world.breaks and waits and self.heard(world, number, shard):
                    yield Moves.reconnect, number, shard
        yield from self._beside_workers(world)

    def _beside_workers(self, world: World) -> Iterator[tuple[Any, ...]]:
        if world.cuts and not world.cut:
            yield (Moves.hold,)
        if world.losses:
            for shard in SHARDS:
                under_way = {order[0] for order in (*world.down[shard], *world.up[shard])}
                if under_way & {"choose", "catch_up", "report"}:
                    yield Moves.lose, shard
