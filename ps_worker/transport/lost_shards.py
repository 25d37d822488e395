"""The shards of a service that do not answer, for people: who waits is told of them before any worker.

It must not know what is waited for. May be called by any thread, which it holds up for `ANSWER_LIMIT_S` for
each shard that hangs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ps_worker.process import farewell
from ps_worker.process.farewell import Farewell

ANSWER_LIMIT_S = 1.0  # a shard that only waits for workers answers at once


class ShardConnection(Protocol):
    """A connection to one shard."""

    @property
    def shard_name(self) -> str:
        """The shard, and its address."""

    def is_lost(self, limit_s: float) -> bool:
        """Whether the connection is broken, or the shard's process does not answer within the limit."""


def farewell_to(connections: Iterable[ShardConnection]) -> Farewell:
    """The time to leave after Ctrl-C, from now on: short, where a shard does not answer.

    Waits for the first such one, for `farewell.ANSWER_LIMIT_S`.
    """
    lost = any(connection.is_lost(farewell.ANSWER_LIMIT_S) for connection in connections)
    return Farewell(farewell.LOST_LIMIT_S if lost else None)


def lost_shards(connections: Iterable[ShardConnection]) -> list[str]:
    """The shards without which nobody goes on, in a line each."""
    lost = [connection for connection in connections if connection.is_lost(ANSWER_LIMIT_S)]
    return [f"waiting for {connection.shard_name}, which does not answer" for connection in lost]


def wait_line(text: str, whom: Iterable[str]) -> str:
    """Names what is waited for, and for whom, as far as that is known, in a line."""
    return "; ".join(filter(None, [text, *whom]))
