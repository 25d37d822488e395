"""Pushes and pulls of one table: what has left, what was answered, what is waited for.

What is sent is first noted here, so that a connection that breaks can send it again (`replay`); shards take
each push once. At most one push and one pull of a partition are under way.
Region ownership: from `push` until its ACK, or until FREE if that says LENT, the partition's gradient memory
belongs to the exchange, and so does what it was rounded into. Weights are written between `pull` and the
last answer, by the receiving threads or by a shard; then they belong to whoever reads them for `when_pulled`,
and the next `pull` waits for it. `_changed` guards everything below it; it is
notified of answers and failures.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from ps_wire.errors import FrameMalformed, PsError
from ps_wire.frames import frame as wire
from ps_wire.frames import meta
from ps_wire.frames.messages import hyperparameters_to_proto
from ps_wire.process import trace
from ps_wire.spec.codec import AS_THEY_ARE, NOTHING
from ps_wire.spec.plan import Partition, Plan
from ps_wire.spec.table import Hyperparameters
from ps_wire.spec.wire_dtype import WireDtype
from ps_worker.exchange.pulls import Pulls
from ps_worker.exchange.pushes import Pushes
from ps_worker.exchange.reentry import Reentry
from ps_worker.exchange.sharing import MemorySharing
from ps_worker.exchange.waits import Callback, PulledCallback, Waits
from ps_worker.memory.flat import FlatBuckets
from ps_worker.memory.rounded import Rounded
from ps_worker.memory.table_memory import Sharing, TableMemory
from ps_worker.process.waiting import waits
from ps_worker.transport.connection import Connection

KEPT_HYPERPARAMETERS = 8  # a push that is sent again refers to one of the last few


class Hooks(Protocol):
    """On parameters."""

    def detach(self) -> None:
        """Takes them off."""
        ...


class Exchange(MemorySharing, Reentry, Waits):
    """See the module's docstring. One thread of the user's at a time calls it; connections call it too.

    Attributes:
        missed: steps that this worker skipped, for it was late.
        skips: it may do so: which step weights are of is known when all are here.
    """

    def __init__(
        self,
        *,
        table: int,
        plan: Plan,
        worker: int,
        incarnation: int,
        start: Hyperparameters,
        strict: bool = False,
        sharing: Sharing = Sharing.PRIVATE,
        wire_dtype: WireDtype = WireDtype.FP32,
        backup: bool = False,
        bounded: bool = False,
    ) -> None:
        """Has nothing under way.

        `backup`: there are backup workers: weights may be of a later step than they were asked for.
        `bounded`: a push may be only so far ahead of those of others (`ssp`).
        """
        self.plan = plan
        self.memory = TableMemory(plan, sharing)
        self.gradients = self.memory.gradients
        self.partitions: list[Partition] = self.memory.partitions
        self.versions = [0] * plan.num_partitions
        self.clocks: dict[int, int] = {}
        self.missed = 0
        self.skips = backup
        self.hooks: Hooks | None = None  # of the table's parameters: there is one set of them
        self.begins: Callable[[], None] = lambda: None  # called before the first push of a step
        self._begun = -1
        self._bounded, self._opened = bounded, -1
        self.bytes_pushed = 0
        self.bytes_pulled = 0
        self.number = self._table = table
        self._worker = worker
        self._incarnation = incarnation
        self._connections: Sequence[Connection] = ()
        self._sizes = [self.gradients.partition(partition).nbytes for partition in self.partitions]
        self._rounded = Rounded(self.gradients, self.partitions, wire_dtype)
        self._push_flags = wire.STRICT * strict | wire.PULLS * (sharing in (Sharing.LENT, Sharing.MAPPED))
        self._hyper_number, self._hyper = 0, start
        self._hyper_frames: OrderedDict[int, wire.Frame] = OrderedDict()
        lock = threading.RLock()
        self._changed, self._answered = threading.Condition(lock), threading.Condition(lock)
        self._pushes = Pushes()
        self._pulls = Pulls()
        self._error: PsError | None = None
        self._when_acked: list[Callback] = []
        self._when_pulled: list[PulledCallback] = []
        self._reading = 0
        self._awaited = frozenset()

    @property
    def weights(self) -> FlatBuckets:
        """The weights that came last, all of them."""
        return self.memory.weights

    def connect(self, connections: Sequence[Connection]) -> None:
        """Gives the exchange its connections, in shard order."""
        self._connections = connections

    # -- sending ---------------------------------------------------------------------------------------

    def set_hyperparameters(self, hyper: Hyperparameters) -> None:
        """What the next pushes take; sent to all shards where it differs from what they take now."""
        if hyper == self._hyper:
            return
        number, data = self._hyper_number + 1, hyperparameters_to_proto(hyper).SerializeToString()
        frame = self._frame(wire.Kind.HYPER, hyper=number, meta=data)
        with self._changed:
            self._hyper_frames[number] = frame
            while len(self._hyper_frames) > KEPT_HYPERPARAMETERS:
                self._hyper_frames.popitem(last=False)
        for connection in self._connections:
            connection.send(frame)
        self._hyper, self._hyper_number = hyper, number  # only now: Ctrl-C may have come between

    def takes(self, hyper: Hyperparameters) -> bool:
        """Whether pushes take these hyper-parameters now."""
        return hyper == self._hyper

    def load(self) -> None:
        """Sends what is in the staging memory as the start of the table. May be called again."""
        self._send_again()
        for partition in self.partitions:
            if partition.index not in self._pushes.steps:
                place = {"partition": partition.index, "payload": self.memory.staging.bytes_of(partition)}
                self._send_noted([self._frame(wire.Kind.LOAD, **place)])

    @trace.traced("queue pushes")
    def push(
        self,
        partitions: Sequence[Partition],
        *,
        step: int,
        weight: float,
        present: Sequence[Sequence[bool]],
    ) -> None:
        """Sends the gradient memory of partitions, which belongs to the exchange until their ACKs.

        Args:
            partitions: of the plan.
            step: the worker's clock.
            weight: of the push in a BSP mean.
            present: for each parameter piece in each partition, whether it had a gradient. Without any, no
                payload travels.
        """
        self.begin(step)
        frames = []
        for partition, there in zip(partitions, present, strict=True):
            payload = self._rounded.payload(partition.index) if any(there) else b""
            self.bytes_pushed += len(payload)
            frames.append(
                self._frame(
                    wire.Kind.PUSH,
                    codec=self._rounded.codec_of(partition.index),
                    flags=self._push_flags,
                    partition=partition.index,
                    step=step,
                    version=self.versions[partition.index],
                    hyper=self._hyper_number,
                    weight=weight,
                    meta=b"" if all(there) else meta.bitmap(there),
                    payload=payload,
                )
            )
        self._send_noted(frames)

    def abstain(self, *, step: int) -> None:
        """Takes this step with nothing to apply where nothing was pushed. May be called again."""
        self.begin(step)
        self._send_again()
        for partition in self.partitions:
            if self._pushes.steps.get(partition.index) != step:
                place = {"partition": partition.index, "step": step, "meta": meta.listed([partition.index])}
                self._send_noted([self._frame(wire.Kind.ABSTAIN, **place)])

    def begin(self, step: int) -> None:
        """The first push of a step is about to leave. May be called again."""
        if step != self._begun:
            self._begun = step
            self.begins()

    @trace.traced("ask for weights")
    def pull(self, *, step: int, read: bool = False, cut: bool = False) -> None:
        """Asks for all weights at this clock, first layers first.

        Args:
            step: the worker's clock, after its pushes.
            read: at once, past the gate: the job has ended.
            cut: at the cut of that number, which is `step` (for a reader).
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._reading)  # a copy: it waits for nobody
            self._raise_failed()
            self._pulls.ask(self.plan.num_partitions, step, wire.READ * read | wire.CUT * cut)
            asked = [self._asked(shard) for shard in range(len(self._connections))]
        for connection, frames in zip(self._connections, asked, strict=True):
            connection.send(*frames)

    @waits("workers that are behind, further than ssp lets this one run ahead")
    def pass_gate(self, step: int) -> None:
        """Waits until this worker may push this step: until a pull at this clock is answered, or would be.

        Raises:
            PsError: the exchange has failed.
        """
        if not self._bounded or self._opened >= step:
            return
        self.wait_pulled()
        if self._opened < step:
            with self._changed:
                self._raise_failed()
                self._pulls.ask(self.plan.num_partitions, step, nothing=True)
                asked = [self._asked(shard) for shard in range(len(self._connections))]
            for connection, frames in zip(self._connections, asked, strict=True):
                connection.send(*frames)
            self.wait_pulled()

    def _send_again(self) -> None:
        """What was noted and is not acknowledged: Ctrl-C may have come before it was queued."""
        with self._changed:
            self._raise_failed()
            frames = list(self._pushes.unacked.values())
        for frame in frames:
            self._connections[self.partitions[frame.partition].shard].send(frame)

    def _send_noted(self, frames: Sequence[wire.Frame]) -> None:
        by_shard: dict[int, list[wire.Frame]] = {}
        for frame in frames:
            by_shard.setdefault(self.partitions[frame.partition].shard, []).append(frame)
        with self._changed:
            self._raise_failed()
            for frame in frames:
                self._pushes.note(frame)
        for shard, mine in by_shard.items():
            self._connections[shard].send(*mine)

    def _asked(self, shard: int) -> list[wire.Frame]:
        """The PULL for what is missing of a shard, if anything is; under the lock."""
        wanted = self._pulls.of_shard(self.partitions, shard)
        if not wanted:
            return []
        flags = self._pulls.flags  # what is read is no step's, and comes as it is
        codec = NOTHING if self._pulls.nothing else AS_THEY_ARE if flags else self._rounded.codec
        place = {"partition": wanted[0], "step": self._pulls.step, "flags": flags, "codec": codec}
        return [self._frame(wire.Kind.PULL, **place, meta=meta.listed(wanted))]

    def _frame(self, kind: wire.Kind, **fields: Any) -> wire.Frame:
        fields |= {"table": self._table, "worker": self._worker, "incarnation": self._incarnation}
        return wire.Frame(kind=kind, **fields)

    # -- from connections ------------------------------------------------------------------------------

    def take(self, frame: wire.Frame) -> None:
        """A frame of a shard about this table; on the connection's thread."""
        if frame.partition >= self.plan.num_partitions:
            self.fail(FrameMalformed(f"a shard speaks of partition {frame.partition}; there is none"))
        elif frame.kind in (wire.Kind.ACK, wire.Kind.FREE):
            self._take_answer(frame)
        elif frame.kind is wire.Kind.PULLED:
            self._take_pulled(frame)
        elif frame.kind is wire.Kind.SHARE:
            self._take_share(frame)

    def landing(self, frame: wire.Frame, payload_bytes: int) -> memoryview | None:
        """The weights that a PULLED is about to bring, if they are waited for; else it lands elsewhere."""
        if frame.kind is not wire.Kind.PULLED or not self._expects(frame):
            return None
        return self.memory.landing(self.partitions[frame.partition], frame.version, payload_bytes)

    def _expects(self, frame: wire.Frame) -> bool:
        with self._changed:
            return self._pulls.expects(frame) and not self._error

    def _take_answer(self, frame: wire.Frame) -> None:
        with self._changed:
            if self._pushes.take(frame):
                self._answered.notify_all()
            callbacks = self._due(self._when_acked, not self._pushes.acked())
        for callback in callbacks:
            callback(None)

    def _take_pulled(self, frame: wire.Frame) -> None:
        index = frame.partition
        if not self._expects(frame):
            return  # answered already, on a connection that has gone since
        if frame.codec == NOTHING:
            self._take_opened(frame)
            return
        if not frame.flags & wire.SHARED:  # else the shard has them where they are read
            try:
                self.memory.put(self.partitions[index], frame.version, frame.payload, frame.codec)
            except (FrameMalformed, OSError) as error:
                self.fail(self.cannot_keep(error) if isinstance(error, OSError) else error)
                return
        self.memory.on_arrival(self.partitions[index])
        with self._changed:
            if frame.step != self._pulls.step:
                return  # something else was asked for meanwhile
            self.versions[index] = frame.version
            self._see_clocks(frame)
            self.bytes_pulled += len(frame.payload) or self._sizes[index]
            self._pulls.came(index)
            if self.memory.mapped:  # then the mean of the step has been made
                self._pushes.closed(index)
                self._answered.notify_all()
            if not self._pulls:
                self._opened = frame.step
                self.missed += self.step_of(frame.step) - frame.step
                self.memory.show(frame.version)
                self._changed.notify_all()
            elif index in self._awaited and self._pulls.here(self._awaited):
                self._changed.notify_all()
            due = self._due_pulled()
            callbacks = self._due(self._when_acked, not self._pushes.acked())
        self._show(due)
        for callback in callbacks:
            callback(None)

    def _take_opened(self, frame: wire.Frame) -> None:
        """The gate of a partition has opened; no weights came, and none were asked for."""
        with self._changed:
            if not self._pulls.nothing or not self._pulls.expects(frame):
                return
            self._see_clocks(frame)
            self._pulls.came(frame.partition)
            if not self._pulls:
                self._opened = frame.step
                self._changed.notify_all()

    def _see_clocks(self, frame: wire.Frame) -> None:
        for worker, clock in meta.read_clocks(frame.meta):
            self.clocks[worker] = max(clock, self.clocks.get(worker, 0))

    def replay(self, shard: int) -> Iterator[wire.Frame]:
        """See `Peer.replay`: hyper-parameters, pushes without ACK or FREE, pulls without an answer."""
        with self._changed:
            yield from self._shared()
            yield from list(self._hyper_frames.values())
            pushes = self._pushes.again()
            yield from [frame for frame in pushes if self.partitions[frame.partition].shard == shard]
            yield from self._asked(shard)
