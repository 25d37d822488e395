"""Members of one table on one shard: joins, leaves, and changes in two rounds, on every cell of it.

A base of `ShardTable`. It must not know frames or connections.
"""

from __future__ import annotations

import time

from ps_server.shard.table.step_closing import TableClosing


class TableMembers(TableClosing):
    """See the module's docstring."""

    def join(self, worker: int, incarnation: int, clock: int) -> None:
        """A worker becomes a member of every partition; `clock` is its first step."""
        now_s = time.monotonic()
        with self._deciding:
            for cell in self._cells.values():
                cell.join(worker, incarnation, clock, now_s)
        self._settle()

    def leave(self, worker: int, incarnation: int) -> int:
        """A worker stops being a member; returns the newest clock over all partitions."""
        now_s = time.monotonic()
        with self._deciding:
            newest = [cell.leave(worker, incarnation, now_s) for cell in self._cells.values()]
        self._settle()
        return max(newest, default=0)

    def prepare(self, worker: int, incarnation: int) -> int:
        """A worker is about to join; returns the first step that it can take on all partitions here."""
        with self._deciding:
            return max((cell.prepare(worker, incarnation) for cell in self._cells.values()), default=0)

    def fence(self, worker: int, incarnation: int) -> int | None:
        """A worker is about to be evicted; returns its smallest clock here, None where it is no member."""
        with self._deciding:
            clocks = [cell.fence(worker, incarnation) for cell in self._cells.values()]
        return min((clock for clock in clocks if clock is not None), default=None)

    def evict(self, worker: int, incarnation: int, limit: int, epoch: int) -> int:
        """A fenced worker is no member any more: pushes of steps below `limit` count.

        Returns:
            The newest clock over all partitions.
        """
        with self._deciding:
            if self._clipping is not None:
                self._clipping.reopen(epoch)
            now_s = time.monotonic()
            newest = [cell.evict(worker, incarnation, limit, now_s) for cell in self._cells.values()]
        self._settle()
        return max(newest, default=0)
