"""Servers that die, stop and come back in a search of all states of a small job, and what they send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.search.coordinators import CoordinatorNode
from tests.search.service import ENDS, JOINS, LATER, MAKES, OVER, STARTS, UNDONE, Moves, Worker, World
from tests.search.shards import Input, refusal_of, register_of
from tests.search.workers import (
    COMES,
    DEAD,
    DONE,
    GONE,
    PULLING,
    PUSHED,
    TRAINS,
    WAITING,
    move,
    put,
)

Event = tuple[Any, ...]  # a move's name, then what it takes


def with_(pair: tuple[Any, Any], place: int, value: Any) -> tuple[Any, Any]:
    """A pair with another value at one place."""
    return (value, pair[1]) if place == 0 else (pair[0], value)


@dataclass(slots=True, kw_only=True)
class ServerMoves(Moves):
    """Servers, and what they send."""

    # -- what is sent --------------------------------------------------------------------------------

    def give(self, world: World, shard: int, given: Input, lost: tuple[str, ...] = ()) -> World:
        """A shard gets an input; of what comes out some is `lost`."""
        node, outputs = self.shards.step(world.shards[shard], given)
        world = world._replace(shards=with_(world.shards, shard, node))
        for name, *what in outputs:
            if name not in lost:
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

    def _on_report(self, world: World, shard: int, text: bytes) -> World:
        return self.tell_of_shard(world, shard, ("report", shard, text))

    def _on_done(self, world: World, shard: int, text: bytes) -> World:
        return self.tell_of_shard(world, shard, ("done", shard, text))

    def tell_of_shard(self, world: World, shard: int, given: Input) -> World:
        """A shard tells the coordinator something."""
        return self.tell(world, given)

    def _on_pulled(self, world: World, shard: int, number: int, incarnation: int, version: int) -> World:
        worker = world.workers[number]
        if (worker.life, worker.incarnation) != (TRAINS, incarnation) or worker.at[shard] != WAITING:
            return world
        return self._turn(move(world, number, shard, version), number)

    def _on_ack(self, world: World, shard: int, number: int, incarnation: int, step: int) -> World:
        worker = world.workers[number]
        if (worker.life, worker.incarnation) != (TRAINS, incarnation) or worker.at[shard] != PUSHED:
            return world
        return self._turn(move(world, number, shard, DONE), number) if step == worker.step else world

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
        took = getattr(self, f"_told_{kind}", None)
        return world if took is None else took(world, number, worker, value)

    def _told_joined(self, world: World, number: int, worker: Worker, value: tuple[int, int, bool]) -> World:
        if worker.life not in (COMES, JOINS):
            return world
        first, second, ended = value
        incarnation, _state = world.coordinator.members[number]
        world = put(world, number, life=MAKES, incarnation=incarnation, generations=(first, second))
        return self.gone(world, number) if ended else world

    def _told_table_made(self, world: World, _number: int, _worker: Worker, upload: bool) -> World:
        assert not upload, "its weights are there"
        return world

    def _told_table_started(self, world: World, number: int, worker: Worker, step: int) -> World:
        if worker.life != STARTS:
            return world
        world = put(world, number, life=TRAINS, step=step, pushes=False, at=(PULLING, PULLING))
        over = step >= self.steps[number]
        return self.finish(put(world, number, life=ENDS), number) if over else world

    def _told_upload_final(self, world: World, number: int, worker: Worker, _: None) -> World:
        return self.say(world, "final", number) if worker.life == ENDS else world

    def _told_ended(self, world: World, number: int, worker: Worker, _: None) -> World:
        return self.gone(world, number) if worker.life == ENDS else world

    def _told_rolled_back(self, world: World, number: int, worker: Worker, _: int) -> World:
        assert worker.life != JOINS, "it has heard as whom it joined"
        return self._over(world, number)

    def _told_refused(self, world: World, number: int, worker: Worker, error: str) -> World:
        assert error in (*OVER, "ServerNotReady"), ("a worker's process ends", error)
        return self._over(put(world, number, life=COMES) if worker.life == JOINS else world, number)

    # -- orders that fail ----------------------------------------------------------------------------

    def miss(self, world: World, shard: int) -> World:
        """The coordinator waits no longer for a shard to let somebody in; the order is on its way yet."""
        return self.tell(world._replace(misses=world.misses - 1), ("missed", shard))

    def refuse(self, world: World, shard: int) -> World:
        """A shard lets somebody not in."""
        (_, text), *rest = world.down[shard]
        world = world._replace(misses=world.misses - 1, down=with_(world.down, shard, tuple(rest)))
        return self.tell_of_shard(world, shard, ("done", shard, refusal_of(text)))

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
            world = self.replace_coordinator(world, self.coordinators.crashed(world.coordinator))
            fresh = self.shards.fresh(0, world.boots, world.coordinator.own_shard)
        return self._without(world._replace(shards=with_(world.shards, shard, fresh)), shard)

    def stop(self, world: World, shard: int) -> World:
        """SIGTERM; the process in its place has what this one held."""
        world = world._replace(stops=with_(world.stops, shard, world.stops[shard] - 1))
        if shard == 1:
            world = self.broken(world)
            node = self.shards.stopped(world.shards[1])
        else:
            for given in world.down[0]:
                if given[0] == "order":  # it is behind these before it hands anything on
                    world = self.give(world, 0, given, lost=("done", "report"))
            world = self.replace_coordinator(world, self.coordinators.stopped(world.coordinator))
            node = self.shards.stopped(world.shards[0], world.coordinator.own_shard)
        world = self._without(world._replace(shards=with_(world.shards, shard, node)), shard)
        return self.give(world, shard, ("attend",), lost=("report",) * shard)

    def replace_coordinator(self, world: World, coordinator: CoordinatorNode) -> World:
        """Another one: who was about to join asks again, and shard 1 registers again."""
        world = world._replace(coordinator=coordinator, down=((), ()))
        for number, worker in enumerate(world.workers):
            if worker.life == JOINS:
                world = put(world, number, life=COMES)
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
            world = self.give(world, 1, world.down[1][0], lost=("done", "report"))
        return self.broken(world)

    def register(self, world: World) -> World:
        register = register_of(world.shards[1])
        return self.tell(world, ("register", register))

    def recover(self, world: World) -> World:
        return self.tell(self.undo(world), ("recover", world.snapshot))

    def undo(self, world: World) -> World:
        """The job goes back, also for those who are gone."""
        for number, worker in enumerate(world.workers):
            if worker.life == GONE:
                world = put(world, number, life=UNDONE)
        return world

    def expire(self, world: World, shard: int) -> World:
        """A cut that nobody takes any more ends by itself."""
        return self.give(world, shard, ("end",))
