"""A `Fleet` with a real shard 0, as `process` puts them together."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.fleet.generations import Generations
from ps_server.process.shard_zero import ShardZero
from ps_server.shard.shard import Shard


def fleet_of(
    shard: Shard,
    loop: asyncio.AbstractEventLoop,
    generations: Generations | None = None,
    *,
    pool: Executor | None = None,
) -> Fleet:
    """Shard 0 and those that register; without `generations`, numbers live as long as the process."""
    numbers = generations or Generations(None)
    return Fleet(ShardZero(shard, numbers.own), "a:1", loop, numbers, pool)
