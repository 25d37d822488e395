"""Where workers are in a state of a search: their lives, their step on each shard, and how these change."""

from __future__ import annotations

from typing import Any, TypeVar

# a worker with its step on one shard; READY is the version that it got, 0 or more
PULLING, WAITING, PUSHING, PUSHED, DONE = -1, -2, -3, -4, -5
COMES, TRAINS, GONE, DEAD = "comes", "trains", "gone", "dead"
SHARDS = (0, 1)

World = TypeVar("World", bound=Any)  # with workers, that have a place on each shard: named tuples all


def put(world: World, number: int, **changes: Any) -> World:
    """The state in which these facts of a worker are others."""
    workers = list(world.workers)
    workers[number] = workers[number]._replace(**changes)
    changed: World = world._replace(workers=tuple(workers))
    return changed


def move(world: World, number: int, shard: int, at: int) -> World:
    """The state in which a worker is elsewhere with its step on one shard."""
    places = list(world.workers[number].at)
    places[shard] = at
    return put(world, number, at=tuple(places))
