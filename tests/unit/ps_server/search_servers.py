"""Visits every state of a small job on servers that die, stop and come back, and says where it cannot finish.

Law 17 in its strong form: from every state that is reached, honest events alone lead to an end of the job.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .search_coordinators import CoordinatorNode
from .search_service import (
    COMES,
    DEAD,
    ENDS,
    GONE,
    JOINS,
    LATER,
    LIVES,
    MAKES,
    OVER,
    PULLING,
    PUSHED,
    PUSHING,
    SHARDS,
    STARTS,
    TRAINS,
    UNDONE,
    WAITING,
    DONE,
    Moves,
    World,
)
from .search_shards import Input, ShardNode, follower_of, register_of


Event = tuple[Any, ...]  # a move's name, then what it takes


def with_(pair: tuple[Any, Any], place: int, value: Any) -> tuple[Any, Any]:
    """A pair with another value at one place."""
    return (value, pair[1]) if place == 0 else (pair[0], value)


@dataclass(slots=True, kw_only=True)
class ServerMoves(Moves):
    """Servers, and what they send."""

    # -- what is sent --------------------------------------------------------------------------------

    def give(self, world: World, shard: int, given: Input) -> World:
        """A shard gets an input."""
        node, outputs = self.shards.step(world.shards[shard], given)
        world = world._replace(shards=with_(world.shards, shard, node))
        for name, *what in outputs:
            self.reached.add(name)
            world = getattr(self, f"_on_{name}")(world, shard, *what)
        return world

    def tell(self, world: World, given: Input) -> World:
        """The coordinator gets an input."""
        node, outputs = self.coordinators.step(world.coordinator, given)
        if outputs and outputs[0][0] == "not_now":
            return world
        world = world._replace(coordinator=node)
        for name, *what in outputs:
            world = getattr(self, f"_on_{name}")(world, *what)
        return world

    def _on_order(self, world: World, shards: tuple[int, ...], text: bytes) -> World:
        for shard in shards:
            world = self._send(world, shard, ("order", text))
        return world

    def _on_granted(self, world: World, generation: int, coordinator: int) -> World:
        return self._send(world, 1, ("granted", generation, coordinator))

    def _send(self, world: World, shard: int, given: Input) -> World:
        return world._replace(down=with_(world.down, shard, (*world.down[shard], given)))

    def deliver(self, world: World, shard: int) -> World:
        given, *rest = world.down[shard]
        return self.give(world._replace(down=with_(world.down, shard, tuple(rest))), shard, given)

    def _on_done(self, world: World, shard: int, text: bytes) -> World:
        return self.tell(world, ("done", shard, text))

    def _on_pulled(self, world: World, shard: int, number: int, incarnation: int, version: int) -> World:
        worker = world.workers[number]
        if (worker.life, worker.incarnation) != (TRAINS, incarnation) or worker.at[shard] != WAITING:
            return world
        return self._turn(self._move(world, number, shard, version), number)

    def _on_ack(self, world: World, shard: int, number: int, incarnation: int, step: int) -> World:
        worker = world.workers[number]
        if (worker.life, worker.incarnation) != (TRAINS, incarnation) or worker.at[shard] != PUSHED:
            return world
        return self._turn(self._move(world, number, shard, DONE), number) if step == worker.step else world

    def _on_refused(self, world: World, _: int, number: int, incarnation: int, error: str) -> World:
        if world.workers[number].incarnation != incarnation or world.workers[number].life == DEAD:
            return world
        assert error in (*OVER, *LATER), ("a worker's process ends", error, world)
        self.reached.add(error)
        return self._over(world, number) if error in OVER else world

    def _on_taken(self, world: World, shard: int, part: int) -> World:
        cut = world.cut
        if cut is None:
            return world
        return self._complete(world._replace(cut=cut._replace(parts=with_(cut.parts, shard, part))))

    def _on_armed(self, world: World, shard: int) -> World:
        return self._armed(world, shard)

    def _on_aborted(self, world: World, _: int) -> World:
        return self.give_up(world) if world.cut is not None else world

    def _on_told(self, world: World, number: int, incarnation: int, kind: str, value: Any) -> World:
        worker = world.workers[number]
        self.reached.add(kind)
        if worker.incarnation != incarnation and not (kind == "joined" and worker.life == COMES):
            return world
        match kind:
            case "joined" if worker.life in (COMES, JOINS):
                *generations, ended = value
                world = self.put(
                    world, number, life=MAKES, incarnation=incarnation, generations=tuple(generations)
                )
                return self.gone(world, number) if ended else world
            case "table_made":
                assert not value, "its weights are there"
            case "table_started" if worker.life == STARTS:
                world = self.put(
                    world, number, life=TRAINS, step=value, pushes=False, at=(PULLING, PULLING)
                )
                if value >= self.steps[number]:
                    return self.finish(self.put(world, number, life=ENDS), number)
            case "upload_final" if worker.life == ENDS:
                return self.say(world, "final", number)
            case "ended" if worker.life == ENDS:
                return self.gone(world, number)
            case "rolled_back":
                return self._over(world, number)
            case "refused":
                assert value in (*OVER, "ServerNotReady"), ("a worker's process ends", value, world)
                again = self.put(world, number, life=COMES) if worker.life == JOINS else world
                return self._over(again, number)
        return world

    # -- servers -------------------------------------------------------------------------------------

    def _without(self, world: World, shard: int) -> World:
        """A server's connections end, and what was on its way with them."""
        world = self._again(world._replace(down=with_(world.down, shard, ())), shard)
        return self.give_up(world) if world.cut is not None else world

    def kill(self, world: World, shard: int) -> World:
        """SIGKILL; the process in its place knows what is on the disk."""
        world = world._replace(kills=with_(world.kills, shard, world.kills[shard] - 1), boots=world.boots + 1)
        if shard == 1:
            world = self.broken(world)
            fresh = self.shards.fresh(1, world.boots)
        else:
            world = self._coordinator(world, self.coordinators.crashed(world.coordinator))
            fresh = self.shards.fresh(0, world.boots, world.coordinator.own_shard)
        return self._without(world._replace(shards=with_(world.shards, shard, fresh)), shard)

    def stop(self, world: World, shard: int) -> World:
        """SIGTERM; the process in its place has what this one held."""
        world = world._replace(stops=with_(world.stops, shard, world.stops[shard] - 1))
        if shard == 1:
            world = self.broken(world)
            node = self.shards.stopped(world.shards[1])
        else:
            world = self._coordinator(world, self.coordinators.stopped(world.coordinator))
            node = self.shards.stopped(world.shards[0], world.coordinator.own_shard)
        return self._without(world._replace(shards=with_(world.shards, shard, node)), shard)

    def _coordinator(self, world: World, coordinator: CoordinatorNode) -> World:
        """Another one: who was about to join asks again, and shard 1 registers again."""
        world = world._replace(coordinator=coordinator, down=((), ()))
        for number, worker in enumerate(world.workers):
            if worker.life == JOINS:
                world = self.put(world, number, life=COMES)
        return self.give_up(world) if world.cut is not None else world

    def broken(self, world: World) -> World:
        """The stream between shard 1 and the coordinator breaks."""
        if world.coordinator.complete:
            world = self.tell(world, ("broke",))
        world = world._replace(down=(world.down[0], ()))
        return self.give_up(world) if world.cut is not None else world

    def break_off(self, world: World, heard: bool) -> World:
        """That, after an order was carried out whose answer is lost, or before."""
        world = world._replace(breaks=world.breaks - 1)
        if heard:
            node, _ = self.shards.step(world.shards[1], world.down[1][0])
            world = world._replace(shards=(world.shards[0], node))
        return self.broken(world)

    def register(self, world: World) -> World:
        register = register_of(world.shards[1])
        return self.tell(world, ("register", register))

    def recover(self, world: World) -> World:
        for number, worker in enumerate(world.workers):
            if worker.life == GONE:
                world = self.put(world, number, life=UNDONE)
        return self.tell(world, ("recover", world.snapshot))

    def expire(self, world: World, shard: int) -> World:
        """A cut that nobody takes any more ends by itself."""
        return self.give(world, shard, ("end",))


@dataclass(slots=True, kw_only=True)
class ServerSearch(ServerMoves):
    """A small job: `run` visits every reachable state.

    Attributes:
        late: so many workers, the last ones, come while the others train.
        budget: how many of each fault may happen: see `World`.
        states, ends: what was visited.
    """

    late: int = 0
    budget: dict[str, Any]
    states: int = 0
    ends: int = 0
    _came: dict[World, tuple[World, Event]] = field(default_factory=dict, repr=False)

    def run(self) -> None:
        logging.disable(logging.CRITICAL)
        try:
            self._run()
        finally:
            logging.disable(logging.NOTSET)

    def _run(self) -> None:
        first = self.begin(self.late, **self.budget)
        places, worlds, queue = {first: 0}, [first], deque([first])
        reached_from: list[list[int]] = [[]]  # of each state, those that an honest event leads from
        ends = []
        while queue:
            world = queue.popleft()
            place = places[world]
            with self._explained(world):
                done = self._done(world)
                events = [*self._events(world)]
            for event, is_honest in events:
                with self._explained(world):
                    after = self._after(world, event)
                if after == world:
                    continue
                if after not in places:
                    places[after] = len(worlds)
                    worlds.append(after)
                    reached_from.append([])
                    queue.append(after)
                    self._came[after] = world, event
                if is_honest:
                    reached_from[places[after]].append(place)
            if done:
                ends.append(place)
        self.states, self.ends = len(worlds), len(ends)
        lost = set(range(len(worlds))) - _behind(ends, reached_from)
        with self._explained(worlds[min(lost, default=0)]):
            assert not lost, f"of {len(lost)} states no honest events lead to an end of the job"

    def _after(self, world: World, event: Event) -> World:
        name, *what = event
        return getattr(self, name)(world, *what)

    @contextmanager
    def _explained(self, world: World) -> Iterator[None]:
        """What goes wrong is told with the events that led there."""
        try:
            yield
        except AssertionError as error:
            events: list[Event] = []
            at = world
            while at in self._came:
                at, event = self._came[at]
                events.insert(0, event)
            steps = "\n".join(map(str, events))
            raise AssertionError(f"{error}\n{steps}\n{show(world)}") from error

    def _done(self, world: World) -> bool:
        if any(worker.life not in (GONE, DEAD, UNDONE) for worker in world.workers):
            return False
        coordinator = world.coordinator
        if any(world.down) or not coordinator.idle or not coordinator.complete:
            return False
        if any(node.live for node in world.shards):
            return False
        first, second = world.shards
        assert not first.staged and not second.staged
        differ = first.applied.keys() ^ second.applied.keys()
        assert len(differ) <= first.mixed_steps + second.mixed_steps, "torn"
        if coordinator.state == "ended":
            for number, worker in enumerate(world.workers):
                if worker.life == GONE and number not in self.uncertain:
                    self._check_all(world, number)
        return True

    def _check_all(self, world: World, number: int) -> None:
        """Every step of a worker that was never evicted is in the weights, once."""
        wanted = {(number, step) for step in range(self.steps[number])} - self.abstains
        for node in world.shards:
            assert wanted <= node.taken, (number)

    @property
    def uncertain(self) -> frozenset[int]:
        """Workers some of whose steps may be dropped."""
        late = range(len(self.steps) - self.late, len(self.steps))
        everybody = range(len(self.steps)) if self.budget.keys() & {"pauses", "leaves"} else ()
        return frozenset((*late, *everybody))

    # -- what can happen -----------------------------------------------------------------------------

    def _events(self, world: World) -> Iterator[tuple[Event, bool]]:
        for event in self._honest(world):
            yield event, True
        for event in self._faults(world):
            yield event, False

    def _honest(self, world: World) -> Iterator[Event]:
        coordinator = world.coordinator
        for number, worker in enumerate(world.workers):
            incarnation, state = coordinator.members.get(number, (0, ""))
            key = number, worker.incarnation
            if worker.life == COMES:
                yield "join", number
            elif worker.life in LIVES and key not in coordinator.heard:
                yield "say", "resume", number
            elif worker.life in (*LIVES, JOINS) and key in coordinator.told:
                yield "say", "hear", number
            elif worker.life == MAKES and state == "joined":
                yield "make", number
            if worker.life in (DEAD, GONE, UNDONE) and state not in ("", "left", "lost", "leaving"):
                yield "say", "lost", number
            if worker.life == TRAINS:
                for shard in SHARDS:
                    if worker.at[shard] in (PULLING, PUSHING) and self.heeded(world, number, shard):
                        yield ("pull" if worker.at[shard] == PULLING else "push"), number, shard
        yield from self._of_servers(world)

    def _of_servers(self, world: World) -> Iterator[Event]:
        coordinator = world.coordinator
        for shard in SHARDS:
            if world.down[shard]:
                yield "deliver", shard
            elif world.cut is None and world.shards[shard].held.cut is not None:
                yield "expire", shard
        if not coordinator.complete:
            yield ("register",)
        elif coordinator.recovers == "waits" and coordinator.sent is None and coordinator.waits is None:
            yield ("recover",)

    def _faults(self, world: World) -> Iterator[Event]:
        coordinator = world.coordinator
        for number, worker in enumerate(world.workers):
            at_work = coordinator.members.get(number) == (worker.incarnation, "joined")
            if world.deaths and worker.life in (*LIVES, JOINS):
                yield "die", number
            if world.pauses and at_work and worker.life == TRAINS:
                yield "pause", number
            if world.leaves and at_work and worker.at == (PUSHING, PUSHING):  # between two steps
                yield "leave", number
            if worker.life == DEAD:
                for shard in SHARDS:
                    if worker.at[shard] == PUSHING and self.heeded(world, number, shard):
                        yield "push", number, shard
        for shard in SHARDS:
            if world.kills[shard]:
                yield "kill", shard
            if world.stops[shard] and (shard == 1 or coordinator.idle):
                yield "stop", shard
        if world.breaks and coordinator.complete:
            yield "break_off", False
            if world.down[1]:
                yield "break_off", True
        if world.cuts and world.cut is None and self._can_cut(world):
            yield ("cutting",)

    def _can_cut(self, world: World) -> bool:
        coordinator = world.coordinator
        if not coordinator.idle or not coordinator.complete or coordinator.state != "running":
            return False
        if any(node.held.cut is not None for node in world.shards) or any(world.down):
            return False
        joined = [
            worker.life == TRAINS
            for number, worker in enumerate(world.workers)
            if coordinator.members.get(number) == (worker.incarnation, "joined")
        ]
        return bool(joined) and all(joined)


def _behind(ends: list[int], reached_from: list[list[int]]) -> set[int]:
    """All states from which one of these is reached."""
    found, queue = set(ends), deque(ends)
    while queue:
        for before in reached_from[queue.popleft()]:
            if before not in found:
                found.add(before)
                queue.append(before)
    return found


def show(world: World) -> str:
    """A state, for people."""
    coordinator = world.coordinator
    lines = [repr(worker) for worker in world.workers]
    lines += [
        f"shard {node.index}: generation {node.generation} version {node.version} {dict(node.applied)} "
        f"staged {set(node.staged)} live {node.live} {node.held} {node.follows}"
        for node in world.shards
    ]
    lines.append(
        f"coordinator: {coordinator.state} {coordinator.members} told {set(coordinator.told)} "
        f"complete {coordinator.complete} {coordinator.recovers} sent {coordinator.sent} "
        f"waits {coordinator.waits} standings {dict(coordinator.standings)}"
    )
    lines.append(f"down {world.down} cut {world.cut} snapshot {world.snapshot} {world[7:]}")
    return "\n".join(["", *lines])


__all__ = ["ServerSearch", "ShardNode", "follower_of"]
