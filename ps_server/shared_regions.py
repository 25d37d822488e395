"""Memory that a worker shares with this shard, on one connection: its gradients and its weights.

A worker sends two descriptors per table (SHARE). From then on the frames of that connection have no payload:
a pushed gradient is read where it lies, and weights that the worker waits for are written where it wants
them.

Ownership, as in `docs/protocol.md`: a partition's gradient memory is the shard's from its PUSH until the ACK,
or until FREE where the ACK says LENT; a partition's weights are the shard's from the worker's PULL to PULLED.

It must not know gates or optimizers. Used by the thread of its connection, and under the locks of cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ps_wire import frame as wire
from ps_wire.carrier import Message, Outlet
from ps_wire.errors import FrameRefused
from ps_wire.plan import Plan
from ps_wire.shared_memory import Layout, attach


@dataclass(frozen=True, slots=True, kw_only=True)
class _Regions:
    plan: Plan
    layout: Layout
    gradients: memoryview
    weights: memoryview

    def place(self, region: memoryview, partition: int) -> memoryview:
        if partition >= self.plan.num_partitions:
            raise FrameRefused(f"there is no partition {partition} in what this worker shares")
        return region[self.layout.bytes_of(self.plan.partition(partition))]


class SharedRegions:
    """See the module's docstring; an `Outlet` of frames whose payload the worker finds in its memory."""

    def __init__(self, outlet: Outlet) -> None:
        """Takes the connection's outlet, for what is left of a frame."""
        self._outlet = outlet
        self._tables: dict[int, _Regions] = {}

    def take(self, frame: wire.Frame, plan: Plan) -> None:
        """A SHARE frame: maps the worker's memory for a table of this plan. Descriptors stay the caller's.

        Raises:
            FrameRefused: it is not the memory that such a table needs.
        """
        if len(frame.descriptors) != 2:
            raise FrameRefused(
                f"SHARE brings two descriptors, for gradients and weights; {len(frame.descriptors)} came"
            )
        layout = Layout(plan)
        gradients, weights = frame.descriptors
        self._tables[frame.table] = _Regions(
            plan=plan,
            layout=layout,
            gradients=attach(gradients, layout.nbytes, writable=False),
            weights=attach(weights, layout.nbytes, writable=True),
        )

    def filled(self, frame: wire.Frame) -> wire.Frame:
        """The frame with its payload, where that lies in shared memory.

        Raises:
            FrameRefused: this connection shares no memory for the table.
        """
        if frame.payload or not frame.flags & wire.SHARED:
            return frame
        regions = self._tables.get(frame.table)
        if regions is None:
            raise FrameRefused(f"this connection shares no memory for table {frame.table}")
        region = regions.weights if frame.kind is wire.Kind.LOAD else regions.gradients
        return replace(frame, payload=regions.place(region, frame.partition))

    def send(self, message: Message) -> None:
        """See `Outlet.send`. Weights are copied at once, under the lock of their cell."""
        frame = message.frame
        regions = self._tables.get(frame.table) if frame.kind is wire.Kind.PULLED else None
        if regions is not None:
            regions.place(regions.weights, frame.partition)[:] = memoryview(frame.payload)
            message = Message(replace(frame, payload=b"", flags=frame.flags | wire.SHARED))
        self._outlet.send(message)
