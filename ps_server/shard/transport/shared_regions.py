"""Memory that a worker and this shard share, on one connection: its gradients, and the weights.

A worker sends descriptors for each table (SHARE). From then on the frames of that connection have no payload.
A pushed gradient is read where it lies, or where the ranks of its worker's group have the terms whose mean it
is. Weights that the worker waits for are written where it wants them, if it has sent memory for them, too; if
not, it maps the halves in which the shard has them, and is only told.

Ownership, as in `docs/protocol.md`: a partition's gradient memory is the shard's from its PUSH until the ACK,
or until FREE where the ACK says LENT, or PULLED of a later version; a partition's memory for weights is the
shard's from the worker's PULL to PULLED.

It must not know gates or optimizers. Used by the thread of its connection, and under the locks of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ps_server.log import logger
from ps_server.shard.table.double_buffer import DoubleBuffer
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import FrameRefused
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Message, Outlet
from ps_wire.frames.lists import partitions
from ps_wire.frames.shared_place import SharedPlace
from ps_wire.process import kernels, trace
from ps_wire.sockets.shared_memory import Layout, attach
from ps_wire.spec.codec import AS_THEY_ARE
from ps_wire.spec.plan import Plan

MAX_OWN = 2  # descriptors of the sender's own memory: gradients, weights
MAX_PLACES = 16_384  # of a table that are kept: 1.3 KB each with its tensor. Others are made for each push


@dataclass(frozen=True, slots=True, kw_only=True)
class _Regions:
    plan: Plan
    layout: Layout
    gradients: memoryview
    weights: memoryview | None
    mapped: bool  # the worker maps the shard's halves
    ranks: tuple[memoryview, ...]  # gradients of each rank of its group
    own: dict[int, tuple[SharedPlace, ...]] = field(default_factory=dict)  # of gradients, by partition
    of_ranks: dict[int, tuple[SharedPlace, ...]] = field(default_factory=dict)
    copies: dict[int, SharedPlace] = field(default_factory=dict)  # of weights, by partition
    written: dict[int, int] = field(default_factory=dict)  # partition -> version that is there

    def terms(self, partition: int, *, of_ranks: bool) -> tuple[SharedPlace, ...]:
        """Where the terms of a gradient lie, one or those of all ranks: the same objects each time.

        Where there are too many to be kept, those of further partitions are made anew.
        """
        if of_ranks and not self.ranks:
            raise FrameRefused("this connection shares no memory of the ranks of a group")
        known = self.of_ranks if of_ranks else self.own
        places = known.get(partition)
        if places is None:
            regions = self.ranks if of_ranks else (self.gradients,)
            places = tuple(SharedPlace(self.place(it, partition)) for it in regions)
            if self._has_room:
                known[partition] = places
        return places

    def copy(self, partition: int) -> SharedPlace | None:
        """Where the weights of a partition are copied to, if they are; kept as `terms` are."""
        place = self.copies.get(partition)
        if place is None and self.weights is not None:
            place = SharedPlace(self.place(self.weights, partition))
            if self._has_room:
                self.copies[partition] = place
        return place

    @property
    def _has_room(self) -> bool:
        """Whether one more place is kept."""
        return len(self.own) + len(self.copies) + len(self.ranks) * len(self.of_ranks) < MAX_PLACES

    def place(self, region: memoryview, partition: int) -> memoryview:
        if partition >= self.plan.num_partitions:
            raise FrameRefused(f"there is no partition {partition} in what this worker shares")
        return region[self.layout.bytes_of(self.plan.partition(partition))]


class SharedRegions:
    """The shared memory of one connection; an `Outlet` of frames whose payload the worker finds there."""

    def __init__(self, outlet: Outlet) -> None:
        """Takes the connection's outlet, for what is left of a frame."""
        self._outlet = outlet
        self._tables: dict[int, _Regions] = {}
        self._asking: tuple[int, int] | None = None  # table and partition: see `asking`
        self._shared_bytes = 0  # a lost count is a figure that is slightly too small

    @property
    def sent_bytes(self) -> int:
        """See `Outlet`."""
        return self._shared_bytes + self._outlet.sent_bytes

    @property
    def queued_bytes(self) -> int:
        """See `Outlet`."""
        return self._outlet.queued_bytes

    def receive(self, frame: wire.Frame, table: ShardTable) -> None:
        """A SHARE frame: maps the worker's memory, or lets it go. Descriptors stay the caller's.

        Raises:
            FrameRefused: it is not the memory that such a table needs, or the table has none to map.
        """
        if not frame.descriptors:
            self._tables.pop(frame.table, None)
            return
        plan, layout = table.plan, Layout(table.plan)
        count = len(frame.descriptors) - frame.hyper  # of the sender's own; those of ranks come behind
        if not 0 < count <= MAX_OWN:
            raise FrameRefused(
                f"SHARE brings one or two descriptors of its sender's, and {frame.hyper} of ranks, as it "
                f"says: {len(frame.descriptors)} came"
            )
        (gradients, *weights), ranks = frame.descriptors[:count], frame.descriptors[count:]
        maps = not weights and bool(table.partitions())
        halves = halves_of(table) if maps else None
        self._tables[frame.table] = _Regions(
            plan=plan,
            layout=layout,
            gradients=attach(gradients, layout.nbytes, writable=False),
            weights=attach(weights[0], layout.nbytes, writable=True) if weights else None,
            mapped=halves is not None,
            ranks=tuple(attach(it, layout.nbytes, writable=False) for it in ranks),
        )
        if maps:
            descriptors = () if halves is None else halves.descriptors
            reply = wire.Frame(
                kind=wire.Kind.SHARE,
                table=frame.table,
                partition=table.partitions()[0],  # which shard it is
                version=len(descriptors),
                descriptors=descriptors,
            )
            self._outlet.send(Message(reply, keeps=halves))

    def filled(self, frame: wire.Frame) -> list[wire.Frame]:
        """The frame with what lies in shared memory in place of its payload; those of a list one by one.

        Raises:
            FrameRefused: this connection shares no memory for the table, or not all of it. Nothing was taken.
            FrameMalformed: see `lists.partitions`.
        """
        if frame.payload or not frame.flags & wire.SHARED or frame.kind is wire.Kind.HELLO:
            return [frame]
        regions = self._tables.get(frame.table)
        if regions is None:
            raise FrameRefused(f"this connection shares no memory for table {frame.table}")
        if frame.kind is wire.Kind.LOAD and regions.weights is not None:
            return [frame.but(payload=regions.place(regions.weights, frame.partition))]
        of_ranks = frame.kind is wire.Kind.PUSH and bool(frame.flags & wire.RANKS)
        flags, bitmap = frame.flags & ~wire.LISTED, b"" if frame.flags & wire.LISTED else frame.meta
        return [
            frame.but(partition=at, flags=flags, meta=bitmap, terms=regions.terms(at, of_ranks=of_ranks))
            for at in partitions(frame)
        ]

    def copies(self, table: int) -> bool:
        """Whether weights of a table are copied to where the worker waits for them."""
        regions = self._tables.get(table)
        return regions is not None and regions.weights is not None

    @contextmanager
    def asking(self, table: int, partition: int) -> Iterator[None]:
        """Meanwhile a push is taken behind which its worker has asked for the weights."""
        self._asking = table, partition
        try:
            yield
        finally:
            self._asking = None

    def write_along(
        self, table: int, partition: int, version: int, write: Callable[[SharedPlace], bool]
    ) -> bool:
        """See `Outlet.write_along`."""
        regions = self._tables.get(table) if self._asking == (table, partition) else None
        place = None if regions is None else regions.copy(partition)
        if regions is None or place is None or not write(place):
            return False
        regions.written[partition] = version
        return True

    def send(self, message: Message) -> None:
        """See `Outlet.send`. Where weights are copied, that is at once, under the lock of their cell."""
        frame = message.frame
        shared = frame.kind is wire.Kind.PULLED and frame.codec == AS_THEY_ARE
        regions = self._tables.get(frame.table) if shared else None
        if regions is not None and regions.weights is not None:
            if regions.written.pop(frame.partition, None) != frame.version:
                self._copy(regions.place(regions.weights, frame.partition), frame.payload)
            self._shared_bytes += len(frame.payload)
            message = message.told()
        elif regions is not None and regions.mapped and not frame.flags & wire.READ:
            self._shared_bytes += len(frame.payload)
            message = message.told()
        self._outlet.send(message)

    def wait_room(self) -> None:
        """See `Outlet.wait_room`."""
        self._outlet.wait_room()

    def sever(self) -> None:
        """See `Outlet.sever`. Maps nothing of the worker's any more."""
        self._tables.clear()
        self._outlet.sever()

    @staticmethod
    @trace.traced("copy weights")
    def _copy(place: memoryview, payload: bytes | memoryview) -> None:
        """Without the interpreter's lock, which `place[:] = payload` would hold for a millisecond."""
        source, target = np.frombuffer(payload, dtype=np.uint8), np.frombuffer(place, dtype=np.uint8)
        if kernels.KERNELS is not None and source.nbytes == target.nbytes >= kernels.STREAMED_BYTES:
            kernels.KERNELS.copy(source.ctypes.data, target.ctypes.data, target.nbytes)
        else:
            np.copyto(target, source)


def halves_of(table: ShardTable) -> DoubleBuffer | None:
    """A table's halves; None, with a word in the log, where there is no memory for them."""
    try:
        return table.halves()
    except OSError as error:
        logger.error(
            "table %d: there is no memory for halves of its weights (%s), so they are copied",
            table.spec.number,
            error.strerror,
        )
        return None
