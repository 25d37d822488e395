"""Cuts of a table on one shard: of every cell what is kept back, whom the weights go to, and the time limit.

The decisions are `cut.Cut`'s. It must not know frames beyond the bytes it is given, nor the coordinator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Generic, Protocol, TypeVar

from ps_server.cut import Cut, CutKey
from ps_server.log import logger
from ps_server.partition import Partition
from ps_server.snapshot_cut import workers_beyond
from ps_wire import watched
from ps_wire.carrier import Message, Outlet
from ps_wire.errors import CutAborted, PsError

HOLD_LIMIT_S = 15.0  # then the coordinator, which gives up before, must be gone


class CutCell:
    """The cut of one cell. Its owner calls everything under the cell's lock, which must be reentrant."""

    def __init__(self, machine: Partition, *, pulled: Callable[[int], Message]) -> None:
        """Takes `pulled`, which makes the weights as they are the answer to the cut of a number."""
        self._cut = Cut(machine)
        self._pulled = pulled
        self._readers: dict[int, tuple[int, Outlet]] = {}  # reader -> number of its cut, where it goes
        self._sent: CutKey | None = None
        self._taker: tuple[CutKey, Callable[[], None]] | None = None
        self._going = False

    def wait_for(self, reader: int, number: int, outlet: Outlet) -> None:
        """The weights go there at the moment of this cut."""
        self._readers[reader] = number, outlet

    def forget(self, outlet: Outlet) -> None:
        """A connection is gone."""
        self._readers = {key: known for key, known in self._readers.items() if known[1] is not outlet}

    def hold(self, key: CutKey) -> dict[int, int]:
        """See `Cut.hold`."""
        return self._cut.hold(key)

    def arm(self, key: CutKey, limits: Mapping[int, int]) -> None:
        """See `Cut.arm`."""
        self._cut.arm(key, limits)
        self.go_on()

    def save(self, key: CutKey, limits: Mapping[int, int], take: Callable[[], None]) -> None:
        """Holds and arms in one; at the moment of this cut `take` is called, which only reads.

        Raises:
            CutAborted: a worker has pushed beyond the cut already: one that has left since, mostly.
        """
        beyond = workers_beyond(self._cut.hold(key), limits)
        if beyond:
            self.end(key)
            raise CutAborted(f"worker {beyond[0]} has pushed beyond the cut")
        self._taker = key, take
        self.arm(key, limits)

    def end(self, key: CutKey) -> bool:
        """See `Cut.end`; whether the weights have been sent."""
        self._cut.end(key)
        self.go_on()
        return self._sent == key

    def leave(self, worker: int) -> None:
        """See `Cut.leave`."""
        self._cut.leave(worker)

    def keeps(
        self,
        worker: int,
        step: int,
        again: Callable[[], None],
        refuse: Callable[[PsError], None],
        *,
        pushes: bool,
    ) -> bool:
        """See `Cut.keeps`; `refuse` takes what `again` raises, for then its sender no longer waits for it."""
        if self._cut.idle:
            return False

        def refusing() -> None:
            try:
                again()
            except PsError as error:
                refuse(error)

        return self._cut.keeps(worker, step, refusing, pushes=pushes)

    def go_on(self) -> None:
        """Sends the weights if this is the moment, and gives again what need not wait any more."""
        if self._going:  # what is given again comes here again, as deep as there are workers
            return
        self._going = True
        try:
            while not self._cut.idle:
                if self._cut.moment:
                    self._send()
                kept = self._cut.next()
                if kept is None:
                    return
                kept.again()
        finally:
            self._going = False

    def _send(self) -> None:
        assert self._cut.key is not None
        key = reader, number = self._cut.key
        if self._taker is not None and self._taker[0] == key:
            self._taker[1]()
            self._taker, self._sent = None, key
        awaited, outlet = self._readers.pop(reader, (None, None))
        if outlet is not None and awaited == number:
            outlet.send(self._pulled(number))
            self._sent = key
        self._cut.end(key)


class _Cell(Protocol):
    lock: threading.RLock
    cut: CutCell


AnyCell = TypeVar("AnyCell", bound=_Cell)


class CutTable(Generic[AnyCell]):
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
