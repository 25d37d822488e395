"""The cut of one cell: what is kept back, and whom the weights go to.

The decisions are those of `PartitionCut`. It must not know frames beyond the bytes it is given, nor the
coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ps_server.agreement.cut_points import workers_beyond
from ps_server.shard.partition.cut import CutKey, PartitionCut
from ps_server.shard.partition.machine import StepMachine
from ps_wire.errors import CutAborted, PsError
from ps_wire.frames.carrier import Message, Outlet


class CellCut:
    """The cut of one cell. Its owner calls everything under the cell's lock, which must be reentrant."""

    def __init__(self, machine: StepMachine, *, pulled: Callable[[int], Message]) -> None:
        """Takes `pulled`, which makes the weights as they are the answer to the cut of a number."""
        self._cut = PartitionCut(machine)
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
        """See `PartitionCut.hold`."""
        return self._cut.hold(key)

    def arm(self, key: CutKey, limits: Mapping[int, int]) -> None:
        """See `PartitionCut.arm`."""
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
        """See `PartitionCut.end`; whether the weights have been sent."""
        self._cut.end(key)
        self.go_on()
        return self._sent == key

    def leave(self, worker: int) -> None:
        """See `PartitionCut.leave`."""
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
        """See `PartitionCut.keeps`; `refuse` takes what `again` raises: its sender no longer waits then."""
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
