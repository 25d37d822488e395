"""Cuts of a table on one shard: all its cells' cuts together, and the time limit.

It must not know frames, nor the coordinator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Generic, Protocol, TypeVar

from ps_server.log import logger
from ps_server.shard.partition.cell_cut import CellCut
from ps_server.shard.partition.cut import CutKey
from ps_wire.errors import CutAborted
from ps_wire.process import watched

HOLD_LIMIT_S = 15.0  # then the coordinator, which gives up before, must be gone


class _Cell(Protocol):
    lock: threading.RLock
    cut: CellCut


AnyCell = TypeVar("AnyCell", bound=_Cell)


class TableCuts(Generic[AnyCell]):
    """The cuts of all cells of a table. Thread-safe."""

    def __init__(self, cells: Iterable[AnyCell], *, settle: Callable[[], None]) -> None:
        """Takes `settle`, called when pushes may have gone on."""
        self._cells = tuple(cells)
        self._settle = settle
        self._lock = threading.Lock()
        self._limit: tuple[CutKey, threading.Timer] | None = None

    def hold(self, key: CutKey) -> dict[int, int]:
        """Keeps every push back; returns worker -> the largest clock over partitions."""
        self._set_limit(key, HOLD_LIMIT_S)
        newest: dict[int, int] = {}
        for cell in self._cells:
            with cell.lock:
                held = cell.cut.hold(key)
            for worker, clock in held.items():
                newest[worker] = max(clock, newest.get(worker, 0))
        return newest

    def arm(self, key: CutKey, limits: Mapping[int, int]) -> None:
        """Each partition is sent when it has the pushes below `limits`, worker -> step, and no other."""
        for cell in self._cells:
            with cell.lock:
                cell.cut.arm(key, limits)
        self._settle()

    def save(
        self, key: CutKey, limits: Mapping[int, int], take: Callable[[AnyCell], None], *, limit_s: float
    ) -> None:
        """Each partition is taken when it has the pushes below `limits`, worker -> step, and no other.

        Args:
            key: of the cut.
            limits: of workers who trained when the cut was made.
            take: called under a cell's lock, once for each.
            limit_s: then the cut ends by itself.

        Raises:
            CutAborted: a worker has pushed beyond the cut; some cells may have been taken.
        """
        self._set_limit(key, limit_s)
        try:
            for cell in self._cells:
                with cell.lock:
                    cell.cut.save(key, limits, partial(take, cell))
        except CutAborted:
            self.end(key)
            raise
        self._settle()

    def end(self, key: CutKey) -> int:
        """The cut is over, or given up: what was kept goes on; returns how many partitions were not sent."""
        self._lift_limit(key)
        unsent = 0
        for cell in self._cells:
            with cell.lock:
                unsent += not cell.cut.end(key)
        self._settle()
        return unsent

    def _set_limit(self, key: CutKey, limit_s: float) -> None:
        timer = watched.timer("ps-cut", limit_s, partial(self.end, key), log=logger)
        with self._lock:
            before, self._limit = self._limit, (key, timer)
        if before is not None:
            before[1].cancel()
        timer.start()

    def _lift_limit(self, key: CutKey) -> None:
        with self._lock:
            if self._limit is None or self._limit[0] != key:
                return
            (_, timer), self._limit = self._limit, None
        timer.cancel()
