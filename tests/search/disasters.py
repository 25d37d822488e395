"""Visits every state of a small job on servers that die, stop and come back, and says where it cannot end.

Law 17 in its strong form: from every state that is reached, honest events alone lead to an end of the job.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.search.coordinators import CoordinatorNode
from tests.search.heirs import HeirMoves
from tests.search.servers import Event
from tests.search.service import BROKEN, JOINS, LIVES, MAKES, UNDONE, World
from tests.search.shards import lets_in
from tests.search.workers import COMES, DEAD, GONE, PULLING, PUSHING, SHARDS, TRAINS


@dataclass(slots=True, kw_only=True)
class ServerSearch(HeirMoves):
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
        if world.heir is not None or any(world.down) or not coordinator.idle or not coordinator.complete:
            return False
        if any(node.live for node in world.shards):
            return False
        first, second = world.shards
        assert not first.staged
        assert not second.staged
        differ = first.applied.keys() ^ second.applied.keys()
        assert len(differ) <= first.mixed_steps + second.mixed_steps, ("torn", differ)
        if coordinator.state == "ended":
            for number, worker in enumerate(world.workers):
                if worker.life == GONE and number not in self.uncertain:
                    self._check_all(world, number)
        return True

    def _check_all(self, world: World, number: int) -> None:
        """Every step of a worker that was never evicted is in the weights, once."""
        wanted = {(number, step) for step in range(self.steps[number])} - self.abstains
        for node in world.shards:
            assert wanted <= node.taken, number

    @property
    def uncertain(self) -> frozenset[int]:
        """Workers some of whose steps may be dropped."""
        late = range(len(self.steps) - self.late, len(self.steps))
        drops = self.gate.backup or self.budget.keys() & {"pauses", "leaves", "misses"}
        everybody = range(len(self.steps)) if drops else ()
        return frozenset((*late, *everybody, *self.groups))

    # -- what can happen -----------------------------------------------------------------------------

    def _events(self, world: World) -> Iterator[tuple[Event, bool]]:
        for event in self._honest(world):
            yield event, True
        for event in self._faults(world):
            yield event, False

    def _honest(self, world: World) -> Iterator[Event]:
        coordinator = world.coordinator
        for number, worker in enumerate(world.workers):
            _, state = coordinator.members.get(number, (0, ""))
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
        broken = (number for number in self.groups if world.workers[number].life == BROKEN)
        yield from (("break_up", number) for number in broken)
        yield from self._of_servers(world)

    def _of_servers(self, world: World) -> Iterator[Event]:
        coordinator = world.coordinator
        for shard in SHARDS:
            if world.down[shard]:
                yield "deliver", shard
            elif world.cut is None and world.shards[shard].held.cut is not None:
                yield "expire", shard
        heir = world.heir
        if heir is None or not heir.followed:
            if not coordinator.complete:
                yield ("register",)
            elif self._can_recover(coordinator):
                yield ("recover",)
        if heir is not None:
            yield ("fenced",)
            if heir.down:
                yield ("heir_carries_out",)
            elif heir.followed and self._can_recover(heir.coordinator):
                yield ("heir_recovers",)

    def _can_recover(self, it: CoordinatorNode) -> bool:
        return it.complete and it.recovers == "waits" and it.sent is None and it.waits is None

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
            for shard in SHARDS if worker.life in (DEAD, BROKEN) else ():
                if worker.at[shard] == PUSHING and self.heeded(world, number, shard):
                    yield "push", number, shard
        for number in self.groups:
            yield from self._faults_of_group(world, number)
        yield from self._faults_of_servers(world)

    def _faults_of_group(self, world: World, number: int) -> Iterator[Event]:
        worker = world.workers[number]
        if world.rank_deaths and worker.life in (*LIVES, JOINS, BROKEN):
            yield "die_rank", number, 0
            if worker.life != BROKEN:
                yield "die_rank", number, 1
        _, state = world.coordinator.members.get(number, (0, ""))
        if world.returns and worker.life == DEAD and state in ("", "left", "lost"):
            yield "form_again", number

    def _faults_of_servers(self, world: World) -> Iterator[Event]:
        coordinator = world.coordinator
        for shard in SHARDS:
            if world.kills[shard]:
                yield "kill", shard
            if world.stops[shard] and (shard == 1 or coordinator.idle):
                yield "stop", shard
        yield from self._faults_of_orders(world) if world.misses else ()
        if world.heirs:
            yield ("double",)
        if world.heir is not None and not world.heir.followed:
            yield ("follow_heir",)
        if world.breaks and coordinator.complete:
            yield "break_off", False
            if world.down[1]:
                yield "break_off", True
        if world.cuts and world.cut is None and self._can_cut(world):
            yield ("cutting",)

    def _faults_of_orders(self, world: World) -> Iterator[Event]:
        sent = world.coordinator.sent
        for shard in SHARDS:
            if sent is not None and sent[2][shard] is None and lets_in(sent[0]):
                yield "miss", shard
            first = world.down[shard][0] if world.down[shard] else ("",)
            if first[0] == "order" and lets_in(first[1]):
                yield "refuse", shard

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
