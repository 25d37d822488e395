"""The shards of a service that do not answer, for people: who waits is told of them before any worker.

It must not know what is waited for. May be called by any thread, which it holds up for `ANSWER_LIMIT_S` for
each shard that hangs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

ANSWER_LIMIT_S = 1.0  # a shard that only waits for workers answers at once


class ShardConnection(Protocol):
    """A connection to one shard."""

    @property
    def shard_name(self) -> str:
        """The shard, and its address."""

    def is_lost(self, limit_s: float) -> bool:
        """Whether the connection is broken, or the shard's process does not answer within the limit."""


def is_any_lost(connections: Iterable[ShardConnection], limit_s: float) -> bool:
    """Whether a shard does not answer; waits for the first such one, for `limit_s`."""
    return any(connection.is_lost(limit_s) for connection in connections)


def lost_shards(connections: Iterable[ShardConnection]) -> list[str]:
    """The shards without which nobody goes on, in a line each."""
    lost = [connection for connection in connections if connection.is_lost(ANSWER_LIMIT_S)]
    return [f"waiting for {connection.shard_name}, which does not answer" for connection in lost]
