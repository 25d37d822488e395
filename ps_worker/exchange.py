"""Pushes and pulls of one table: what has left, what was answered, what is waited for.

Everything that is sent is first noted here, so that a connection that breaks can send it again (`replay`);
shards take each push once. At most one push and one pull of a partition are under way.

Region ownership: from `push` until its ACK, the partition's gradient memory belongs to the exchange. Weights
are written by the receiving threads between `pull` and the end of `wait_pulled`.

`_changed` guards everything below it and is notified when something was answered or has failed.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from ps_wire import frame as wire
from ps_wire.buffer import as_tensor
from ps_wire.errors import FrameMalformed, PsError
from ps_wire.messages import hyperparameters_to_proto
from ps_wire.plan import Partition, Plan
from ps_wire.table import Hyperparameters
from ps_worker.connection import Connection
from ps_worker.flat import FlatBuckets

KEPT_HYPERPARAMETERS = 8
REPORT_WAIT_S = 10.0
_CLOCK = struct.Struct("<IQ")

Callback: TypeAlias = Callable[[PsError | None], None]


class Exchange:
    """See the module's docstring. One thread of the user's at a time calls it; connections call it too."""

    def __init__(
        self,
        *,
        table: int,
        plan: Plan,
        worker: int,
        incarnation: int,
        start: Hyperparameters,
        strict: bool = False,
    ) -> None:
        self.plan = plan
        self.weights = FlatBuckets(plan)
        self.gradients = FlatBuckets(plan, private=True)
        self.partitions: list[Partition] = [plan.partition(index) for index in range(plan.num_partitions)]
        self.versions = [0] * plan.num_partitions
        self.clocks: dict[int, int] = {}
        self.bytes_pushed = 0
        self.bytes_pulled = 0
        self._table = table
        self._worker = worker
        self._incarnation = incarnation
        self._connections: Sequence[Connection] = ()
        self._push_flags = wire.STRICT if strict else 0
        self._hyper_number = 0
        self._hyper = start
        self._hyper_frames: OrderedDict[int, wire.Frame] = OrderedDict()
        self._changed = threading.Condition()
        self._unacked: dict[int, wire.Frame] = {}
        self._unpulled: OrderedDict[int, None] = OrderedDict()
        self._pull_step = 0
        self._pull_flags = 0
        self._error: PsError | None = None
        self._when_acked: list[Callback] = []
        self._when_pulled: list[Callback] = []

    def connect(self, connections: Sequence[Connection]) -> None:
        """Gives the exchange its connections, in shard order."""
        self._connections = connections

    # -- sending ---------------------------------------------------------------------------------------

    def set_hyperparameters(self, hyper: Hyperparameters) -> None:
        """What the next pushes take; sent to all shards where it differs from what they take now."""
        if hyper == self._hyper:
            return
        self._hyper = hyper
        self._hyper_number += 1
        frame = self._frame(
            wire.Kind.HYPER,
            hyper=self._hyper_number,
            meta=hyperparameters_to_proto(hyper).SerializeToString(),
        )
        with self._changed:
            self._hyper_frames[self._hyper_number] = frame
            while len(self._hyper_frames) > KEPT_HYPERPARAMETERS:
                self._hyper_frames.popitem(last=False)
        for connection in self._connections:
            connection.send(frame)

    def takes(self, hyper: Hyperparameters) -> bool:
        """Whether pushes take these hyper-parameters now."""
        return hyper == self._hyper

    def load(self, partition: Partition) -> None:
        """Sends the weights of a partition as the start of the table."""
        self._send_noted(
            partition,
            self._frame(wire.Kind.LOAD, partition=partition.index, payload=self.weights.bytes_of(partition)),
        )

    def push(self, partition: Partition, *, step: int, weight: float, present: Sequence[bool]) -> None:
        """Sends a partition's gradient memory, which belongs to the exchange until its ACK.

        Args:
            partition: of the plan.
            step: the worker's clock.
            weight: of the push in a BSP mean.
            present: for each parameter piece in the partition, whether it had a gradient. Without any,
                no payload travels.
        """
        payload = self.gradients.bytes_of(partition) if any(present) else b""
        self.bytes_pushed += len(payload)
        self._send_noted(
            partition,
            self._frame(
                wire.Kind.PUSH,
                flags=self._push_flags,
                partition=partition.index,
                step=step,
                version=self.versions[partition.index],
                hyper=self._hyper_number,
                weight=weight,
                meta=b"" if all(present) else bitmap(present),
                payload=payload,
            ),
        )

    def abstain(self, partitions: Iterable[Partition], *, step: int) -> None:
        """Advances the worker's clock on these partitions with nothing to apply."""
        for partition in partitions:
            frame = self._frame(
                wire.Kind.ABSTAIN, partition=partition.index, step=step, meta=_list([partition.index])
            )
            self._send_noted(partition, frame)

    def pull(self, *, step: int, read: bool = False, cut: bool = False) -> None:
        """Asks for all weights at this clock, first layers first.

        Args:
            step: the worker's clock, after its pushes.
            read: at once, past the gate (for one who is no member).
            cut: at the cut of that number, which is `step` (for a reader).
        """
        with self._changed:
            self._raise_failed()
            self._unpulled = OrderedDict.fromkeys(range(self.plan.num_partitions - 1, -1, -1))
            self._pull_step, self._pull_flags = step, wire.READ * read | wire.CUT * cut
        for shard, connection in enumerate(self._connections):
            for frame in self._pulls(shard):
                connection.send(frame)

    def _send_noted(self, partition: Partition, frame: wire.Frame) -> None:
        with self._changed:
            self._raise_failed()
            assert partition.index not in self._unacked, f"partition {partition.index} is under way"
            self._unacked[partition.index] = frame
        self._connections[partition.shard].send(frame)

    def _pulls(self, shard: int) -> list[wire.Frame]:
        wanted = [index for index in self._unpulled if self.partitions[index].shard == shard]
        if not wanted:
            return []
        kind, meta = wire.Kind.PULL, _list(wanted)
        return [
            self._frame(kind, partition=wanted[0], step=self._pull_step, flags=self._pull_flags, meta=meta)
        ]

    def _frame(self, kind: wire.Kind, **fields: float | bytes | memoryview) -> wire.Frame:
        return wire.Frame(
            kind=kind,
            table=self._table,
            worker=self._worker,
            incarnation=self._incarnation,
            **fields,  # type: ignore[arg-type]
        )

    # -- waiting ---------------------------------------------------------------------------------------

    def wait_acked(self, partitions: Iterable[Partition] | None = None, limit_s: float | None = None) -> bool:
        """Waits until these pushes (default: all) are acknowledged; False when `limit_s` ran out first.

        Raises:
            PsError: the exchange has failed.
        """
        wanted = None if partitions is None else {partition.index for partition in partitions}

        def acked() -> bool:
            if self._error is not None:
                return True
            return not self._unacked if wanted is None else not (wanted & self._unacked.keys())

        with self._changed:
            done = self._changed.wait_for(acked, limit_s)
            self._raise_failed()
            return done

    def wait_pulled(self, report: Callable[[str], None] | None = None) -> float:
        """Waits until every weight asked for has arrived; returns the seconds that took.

        Args:
            report: called with a text every `REPORT_WAIT_S` of waiting.

        Raises:
            PsError: the exchange has failed.
        """
        started_s = time.monotonic()
        with self._changed:
            while self._unpulled and self._error is None:
                if not self._changed.wait(REPORT_WAIT_S) and report is not None:
                    report(self._waiting_for())
            self._raise_failed()
        return time.monotonic() - started_s

    def _waiting_for(self) -> str:
        shards = sorted({self.partitions[index].shard for index in self._unpulled})
        behind = [worker for worker, clock in sorted(self.clocks.items()) if clock < self._pull_step]
        text = f"waiting for weights at step {self._pull_step} from shards {shards}"
        return f"{text}; workers last seen behind it: {behind}" if behind else text

    def when_acked(self, callback: Callback) -> None:
        """Calls back once no push is under way, with None or the failure; on whichever thread sees it."""
        with self._changed:
            if self._unacked and self._error is None:
                self._when_acked.append(callback)
                return
        callback(self._error)

    def when_pulled(self, callback: Callback) -> None:
        """Calls back once every weight asked for is there, with None or the failure."""
        with self._changed:
            if self._unpulled and self._error is None:
                self._when_pulled.append(callback)
                return
        callback(self._error)

    @property
    def all_acked(self) -> bool:
        """Whether no push is under way; without a lock, for the thread that pushes."""
        return not self._unacked and self._error is None

    def _raise_failed(self) -> None:
        if self._error is not None:
            raise self._error

    # -- from connections ------------------------------------------------------------------------------

    def take(self, frame: wire.Frame) -> None:
        """A frame of a shard about this table; on the connection's thread."""
        if frame.partition >= self.plan.num_partitions:
            self.fail(FrameMalformed(f"a shard speaks of partition {frame.partition}; there is none"))
        elif frame.kind is wire.Kind.ACK:
            self._take_ack(frame)
        elif frame.kind is wire.Kind.PULLED:
            self._take_pulled(frame)

    def landing(self, frame: wire.Frame, payload_bytes: int) -> memoryview | None:
        """The weights that a PULLED is about to bring, if they are waited for; else it lands elsewhere."""
        if frame.kind is not wire.Kind.PULLED or not self._expects(frame):
            return None
        place = self.weights.bytes_of(self.partitions[frame.partition])
        return place if len(place) == payload_bytes else None

    def _expects(self, frame: wire.Frame) -> bool:
        with self._changed:
            return frame.partition in self._unpulled and frame.step == self._pull_step and not self._error

    def _take_ack(self, frame: wire.Frame) -> None:
        with self._changed:
            sent = self._unacked.get(frame.partition)
            if sent is not None and sent.step == frame.step:
                del self._unacked[frame.partition]
                self._changed.notify_all()
            callbacks = self._due(self._when_acked, bool(self._unacked))
        for callback in callbacks:
            callback(None)

    def _take_pulled(self, frame: wire.Frame) -> None:
        index = frame.partition
        if not self._expects(frame):
            return  # answered already, on a connection that has gone since
        weights = self.weights.partition(self.partitions[index])
        if len(frame.payload) != weights.nbytes:
            self.fail(FrameMalformed(f"partition {index} came with {len(frame.payload)} bytes"))
            return
        arrived = as_tensor(frame.payload, weights.dtype)
        if arrived.data_ptr() != weights.data_ptr():  # else it landed there
            weights.copy_(arrived)
        with self._changed:
            if frame.step != self._pull_step:
                return  # something else was asked for meanwhile
            self.versions[index] = frame.version
            for worker, clock in _CLOCK.iter_unpack(frame.meta):
                self.clocks[worker] = max(clock, self.clocks.get(worker, 0))
            self.bytes_pulled += len(frame.payload)
            self._unpulled.pop(index, None)
            if not self._unpulled:
                self._changed.notify_all()
            callbacks = self._due(self._when_pulled, bool(self._unpulled))
        for callback in callbacks:
            callback(None)

    @staticmethod
    def _due(callbacks: list[Callback], waits: bool) -> list[Callback]:
        if waits:
            return []
        due = callbacks.copy()
        callbacks.clear()
        return due

    def replay(self, shard: int) -> Iterator[wire.Frame]:
        """See `Peer.replay`: hyper-parameters, pushes without ACK, pulls without an answer."""
        with self._changed:
            yield from list(self._hyper_frames.values())
            yield from [
                frame for index, frame in self._unacked.items() if self.partitions[index].shard == shard
            ]
            yield from self._pulls(shard)

    def fail(self, error: PsError) -> None:
        """Ends every wait, now and later, with this error; the first one stays."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
            callbacks = self._due(self._when_acked, False) + self._due(self._when_pulled, False)
        for callback in callbacks:
            callback(self._error)


def bitmap(present: Sequence[bool]) -> bytes:
    """Bit i is piece i, lowest bit first."""
    packed = bytearray(-(-len(present) // 8))
    for place, flag in enumerate(present):
        packed[place >> 3] |= flag << (place & 7)
    return bytes(packed)


def _list(indices: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(indices)}I", *indices)
