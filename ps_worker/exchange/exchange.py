"""Pushes and pulls of one table, as frames between this worker's memory and all shards.

What is sent is first noted as under way, so that a connection that breaks can send it again (`replay`);
shards take each push once. At most one push and one pull of a partition are under way.
Region ownership: from `push` until its ACK, or until FREE if that says LENT, the partition's gradient memory
belongs to the exchange, and so does what it was rounded into. Weights are written between `pull` and the
last answer, by the receiving threads or by a shard; then they belong to whoever reads them for `when_pulled`,
and the next `pull` waits for it. What an early `push` asked for is written sooner, where nobody reads.

It has no lock: `InFlight` guards what is under way, `TableMemory` what is mapped. Everything else is written
by the user's thread, and replaced as a whole where connections' threads read it. In a group buckets that
leave in backward are pushed by a thread beside it, for which it waits before it does so itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from ps_wire.errors import FrameMalformed
from ps_wire.frames import frame as wire
from ps_wire.frames import meta
from ps_wire.frames.lists import partitions
from ps_wire.frames.messages import hyperparameters_to_proto
from ps_wire.process import trace
from ps_wire.sockets.frame_socket import MAX_DESCRIPTORS
from ps_wire.sockets.shared_memory import Layout
from ps_wire.spec.codec import AS_THEY_ARE, NOTHING
from ps_wire.spec.plan import Partition, Plan
from ps_wire.spec.table import Hyperparameters
from ps_wire.spec.wire_dtype import WireDtype
from ps_worker.exchange.in_flight import Asked, InFlight, Missing
from ps_worker.exchange.rank_traffic import RankTraffic, Reduced
from ps_worker.exchange.rank_weights import RankWeights
from ps_worker.exchange.sharing import SharingHandshake
from ps_worker.exchange.traffic_listener import TrafficListener
from ps_worker.group.lent_gradients import FlatGradients
from ps_worker.memory.flat import FlatBuckets
from ps_worker.memory.rounded import Rounded
from ps_worker.memory.table_memory import Sharing, TableMemory
from ps_worker.process.waiting import waits
from ps_worker.transport.connection import Connection

MakeRanks = Callable[[FlatGradients, Sequence[Partition], Sequence[int]], RankTraffic]
KEPT_HYPERPARAMETERS = 8  # a push that is sent again refers to one of the last few
MAX_RANKS = MAX_DESCRIPTORS - 2  # whose memory a shard maps


class Hooks(Protocol):
    """On parameters."""

    def detach(self) -> None:
        """Takes them off."""
        ...


class Exchange:
    """The traffic of one table. One thread of the user's at a time calls it; connections call it, too.

    Attributes:
        number: of the table.
        plan: how it is cut.
        memory: where it lies.
        gradients: what is pushed.
        partitions: of the table.
        brings: those whose first weights this process loads, where its worker's start the table.
        in_flight: pushes and pulls that are under way: who waits for this process's own asks there.
        sharing: what shards are told of that memory.
        bytes_pushed: of gradients that have left.
    """

    def __init__(
        self,
        *,
        table: int,
        plan: Plan,
        worker: int,
        incarnation: int,
        rank: int = 0,
        start: Hyperparameters,
        strict: bool = False,
        sharing: Sharing = Sharing.PRIVATE,
        wire_dtype: WireDtype = WireDtype.FP32,
        backup: bool = False,
        bounded: bool = False,
        decided: bool = False,
        traffic: TrafficListener | None = None,
        lends: bool = False,
        ahead: bool = False,
        held: Collection[int] | None = None,
        device: torch.device | None = None,
        ranks: MakeRanks | None = None,
    ) -> None:
        """Has nothing under way.

        Args:
            table: its number.
            plan: how it is cut.
            worker: whose traffic it is.
            incarnation: of that worker, until `reenter`.
            rank: of this process in its group.
            start: the hyper-parameters that the table begins with.
            strict: a step that takes other hyper-parameters than this worker's is an error here.
            sharing: which of its memory shards may map.
            wire_dtype: in which gradients and weights travel.
            backup: there are backup workers: weights may be of a later step than they were asked for.
            bounded: a push may be only so far ahead of those of others (`ssp`).
            decided: a step closes when it has been decided over all shards (clipping, backup workers).
            traffic: is told of it, and then shards are asked how long weights wait at the gate.
            lends: other ranks of its group may map its gradients.
            ahead: weights of a bucket may be asked for when it has left, while backward is running.
            held: buckets of which this process has parameters; None: all.
            device: on which ranks of a group reduce gradients and gather weights; None: on the host.
            ranks: makes the traffic between the ranks of a group, of the flat gradients, the partitions, and
                the number of pieces in each; None: this process is the whole worker.
        """
        self.number = table
        self.plan = plan
        self.memory = TableMemory(plan, sharing, lends=lends, held=held, device=device)
        self.gradients = self.memory.gradients
        self.partitions: list[Partition] = self.memory.partitions
        shard_of = [partition.shard for partition in self.partitions]
        self.sharing = SharingHandshake(table, self.memory, shard_of, self._tell_shared)
        self.bytes_pushed = 0
        self._traffic = traffic
        self._ahead = ahead
        self._pushed: list[int] = []  # early, and their weights were not asked for yet
        self._pushed_for = -1  # at this clock
        self._asking = False  # what is noted as asked for may not have been sent
        self._bounded = bounded
        self._decided = decided
        self._worker = worker
        self._incarnation = incarnation
        self._rank = rank
        self._connections: Sequence[Connection] = ()
        self._sizes = [self.gradients.partition(partition).nbytes for partition in self.partitions]
        self._rounded = Rounded(self.gradients, self.partitions, wire_dtype)
        self._push_flags = wire.STRICT * strict | wire.PULLS * (sharing in (Sharing.LENT, Sharing.MAPPED))
        self._hyper_number, self._hyper = 0, start
        self._hyper_frames: tuple[wire.Frame, ...] = ()  # the last few
        self._hooks: Hooks | None = None
        self._ranks: RankTraffic | None = None
        self._own = self.partitions  # those that this process pushes and pulls
        self.brings = self.partitions
        self._of_ranks: tuple[int, ...] = ()  # descriptors that shards get beside the memory's
        if ranks is not None:
            pieces = [len(plan.placements(partition)) for partition in self.partitions]
            self._ranks = ranks(self._flat_gradients(), self.partitions, pieces)
            self._own = [self.partitions[index] for index in self._ranks.owned]
            self.brings = [self.partitions[index] for index in self._ranks.brings]
            if sharing is Sharing.MAPPED and len(self._ranks.descriptors) <= MAX_RANKS:
                self._of_ranks = tuple(self._ranks.descriptors)
        alone = self._ranks is None
        self.in_flight = InFlight(
            shard_of,
            show=self.memory.show if alone else lambda _: None,  # `RankWeights` shows them
            skips=backup,
            pulled=[it.index for it in self._own],
        )
        self._rank_weights: RankWeights | None = None
        if self._ranks is not None:
            self._rank_weights = RankWeights(self._ranks, self.in_flight, self.memory, traffic)

    def _flat_gradients(self) -> FlatGradients:
        layout = Layout(self.plan)
        return FlatGradients(
            tensors=self.gradients.tensors,
            starts=[layout.start_of(bucket.index) for bucket in self.plan.buckets],
            nbytes=layout.nbytes,
            descriptor=self.memory.gradients_descriptor,
            on_device=self.memory.on_device,
        )

    @property
    def sums(self) -> bool:
        """Whether flat gradients are summed in place with those of other ranks."""
        return self._ranks is not None and self._ranks.sums

    @property
    def by_part(self) -> bool:
        """Whether a part of the weights that are asked for can be waited for: in a group if all want that."""
        return self._ranks is None or self._ranks.by_bucket

    def want_by_bucket(self, wanted: bool) -> None:
        """In a group: says whether the script goes on before all weights of its next steps are here."""
        if self._ranks is not None:
            self._ranks.want_by_bucket(wanted and not self.memory.mapped)

    @property
    def gives_back(self) -> bool:
        """Whether gradient memory is given back before the weights of its step are here."""
        return self._ranks is None and not self._push_flags & wire.PULLS

    @property
    def leaves_early(self) -> bool:
        """Whether buckets may be pushed while backward is running: ranks that they wait for need a thread."""
        return self._ranks is None or self._ranks.beside is not None

    @property
    def weights(self) -> FlatBuckets:
        """The weights that came last, all of them."""
        return self.memory.weights

    def connect(self, connections: Sequence[Connection]) -> None:
        """Gives the exchange its connections, in shard order."""
        self._connections = connections

    def reenter(self, incarnation: int) -> None:
        """Begins anew as this incarnation, before it connects: its worker was evicted and has joined again.

        Pushes and pulls of the incarnation before are over: what was on its way is dropped. The memory stays.
        """
        self._incarnation = incarnation
        self._hyper_frames = tuple(it.but(incarnation=incarnation) for it in self._hyper_frames)
        self._pushed = []  # by the incarnation before, which may have been in this very step
        self.in_flight.forget()

    def attach(self, hooks: Hooks) -> None:
        """These are the hooks of the table's parameters; those of a wrap that Ctrl-C ended come off."""
        if self._hooks is not None:
            self._hooks.detach()
        self._hooks = hooks

    # -- sending ---------------------------------------------------------------------------------------

    def set_hyperparameters(self, hyper: Hyperparameters) -> None:
        """Sets what the next pushes take; sent to all shards where it differs from what they take now."""
        if hyper == self._hyper:
            return
        number, data = self._hyper_number + 1, hyperparameters_to_proto(hyper).SerializeToString()
        frame = self._frame(wire.Kind.HYPER, hyper=number, meta=data)
        kept = [it for it in self._hyper_frames if it.hyper != number]
        self._hyper_frames = (*kept, frame)[-KEPT_HYPERPARAMETERS:]
        for connection in self._connections:
            connection.send(frame)
        self._hyper, self._hyper_number = hyper, number  # only now: Ctrl-C may have come between

    def takes(self, hyper: Hyperparameters) -> bool:
        """Whether pushes take these hyper-parameters now."""
        return hyper == self._hyper

    def load(self) -> None:
        """Brings what is in the staging memory to the shards as the start of the table. May be called again.

        Raises:
            PsError: the exchange has failed.
        """
        if self._ranks is not None:
            self._ranks.bring(self.memory.staging.tensors)
        self._send_again()
        for partition in self.brings:
            if self.in_flight.pushed_step(partition.index) is None:
                start = {"partition": partition.index, "payload": self.memory.staging.bytes_of(partition)}
                self._send_noted([self._frame(wire.Kind.LOAD, **start)])
        self.in_flight.wait_acked()
        if self._ranks is not None:
            self._ranks.brought()

    @trace.traced("queue pushes")
    def push(
        self,
        partitions: Sequence[Partition],
        *,
        step: int,
        weight: float,
        present: Sequence[Sequence[bool]],
        early: bool = False,
    ) -> None:
        """Sends the gradient memory of partitions, which belongs to the exchange until their ACKs.

        Args:
            partitions: of the plan.
            step: the worker's clock.
            weight: of the push in a BSP mean.
            present: for each parameter piece in each partition, whether it had a gradient. Without any, no
                payload travels.
            early: backward is still running: other ranks are not waited for here (see `leaves_early`), and
                weights of what was pushed before are asked for, where the link has room.
        """
        if self._ranks is None:
            self._push(partitions, step=step, weight=weight, present=present)
            if early:
                self._ask_ahead([it.index for it in partitions], step + 1)
            return
        if not early:
            self._ranks.arrive(step)
        bucket, beside = partitions[0].bucket, self._ranks.beside
        reduce = partial(
            self._ranks.push,
            bucket,
            step=step,
            weight=weight,
            hyper=_fingerprint(self._hyper),
            present=present,
            apart=bool(self._of_ranks and self.memory.descriptors),
        )
        if beside is not None and (early or beside.used):
            beside.put(bucket, lambda: self._push_reduced(reduce(waits=True), step, early=early))
        else:
            self._push_reduced(reduce(waits=False), step)

    def push_rest(self, *, step: int) -> None:
        """All pushes of this step were made: in a group those leave for which other ranks were waited for."""
        if self._ranks is not None:
            self._wait_beside(self._ranks, step)
            self._push_reduced(self._ranks.rest(), step)

    @staticmethod
    def _wait_beside(ranks: RankTraffic, step: int) -> None:
        ranks.arrive(step)
        if ranks.beside is not None and ranks.beside.used:
            ranks.beside.wait()

    def _push_reduced(self, ready: Sequence[Reduced], step: int, *, early: bool = False) -> None:
        for it in ready:
            partitions = [self.partitions[index] for index in it.partitions]
            self._push(partitions, step=step, weight=it.weight, present=it.present, terms=it.terms)
            if early:
                self._ask_ahead(it.partitions, step + 1)

    def _push(
        self,
        partitions: Sequence[Partition],
        *,
        step: int,
        weight: float,
        present: Sequence[Sequence[bool]],
        terms: Sequence[tuple[memoryview, ...]] = (),
    ) -> None:
        versions = self.in_flight.versions
        frames = []
        every = terms or [()] * len(partitions)
        for partition, there, apart in zip(partitions, present, every, strict=True):
            sent: dict[str, Any] = {}
            if any(there):
                sent = {"terms": apart} if apart else {"payload": self._rounded.payload(partition.index)}
            frame = self._frame(
                wire.Kind.PUSH,
                codec=self._rounded.codec_of(partition.index),
                flags=self._push_flags,
                partition=partition.index,
                step=step,
                version=versions[partition.index],
                hyper=self._hyper_number,
                weight=weight,
                meta=b"" if all(there) else meta.bitmap(there),
                **sent,
            )
            self.bytes_pushed += frame.nbytes
            frames.append(frame)
        self._send_noted(frames)

    def abstain(self, *, step: int) -> None:
        """Takes this step with nothing to apply where nothing was pushed. May be called again."""
        if self._ranks is not None:
            self._wait_beside(self._ranks, step)
            self._push_reduced(self._ranks.abstain(step), step)
        self._send_again()
        self._abstain(self._own, step)

    def _abstain(self, partitions: Sequence[Partition], step: int) -> None:
        for partition in partitions:
            if self.in_flight.pushed_step(partition.index) != step:
                listed = meta.listed([partition.index])
                frame = self._frame(wire.Kind.ABSTAIN, partition=partition.index, step=step, meta=listed)
                self._send_noted([frame])

    @trace.traced("ask for weights")
    def pull(self, *, step: int, read: bool = False, cut: bool = False) -> None:
        """Asks for all weights at this clock, first layers first; in a group for those that are its own.

        Args:
            step: the worker's clock, after its pushes.
            read: at once, past the gate: the job has ended.
            cut: at the cut of that number, which is `step` (for a reader).
        """
        if self._rank_weights is not None:
            self._rank_weights.begin(step)
        if self._traffic is not None:
            self._traffic.asked()
        self._ask(step, wire.READ * read | wire.CUT * cut)
        if self._rank_weights is not None:
            self._rank_weights.go_on()

    def _ask(self, step: int, flags: int = 0, *, nothing: bool = False) -> None:
        """As `InFlight.ask`, and sends it."""
        self._asking = True
        self._send_asked(self.in_flight.ask(step, flags, nothing=nothing))
        self._asking = False

    def _ask_ahead(self, indices: Sequence[int], step: int) -> None:
        """These were pushed right now, and backward is running: asks for weights of those pushed before.

        It asks where the shards have all of these pushes by now. Where they have not, the link has enough to
        do with pushes, which weights would only hold up. They land where those of the version before lay,
        which nobody reads. `pull` asks for the rest.

        Args:
            indices: of partitions.
            step: the next clock.
        """
        if not self._ahead:
            return
        pushed = self._pushed if self._pushed_for == step else []
        if pushed and self.in_flight.wait_acked(pushed, limit_s=0.0):
            self.memory.part(self.in_flight.versions[0])
            asked = self.in_flight.ask_ahead(pushed, step)
            self._send_asked(asked)
            self.in_flight.note_ahead(asked)
            pushed = []
        self._pushed, self._pushed_for = [*pushed, *indices], step

    @waits("workers that are behind, further than ssp lets this one run ahead")
    def pass_gate(self, step: int) -> None:
        """Waits until this worker may push this step: until a pull at this clock is answered, or would be.

        Raises:
            PsError: the exchange has failed.
        """
        if self._bounded:
            self._pass(step)

    @waits("the servers to decide a step")
    def wait_decided(self) -> None:
        """Where steps are decided over all shards: waits until the last one that was pushed is.

        An ACK only says that the push is there. Who finishes would read weights without that step.

        Raises:
            PsError: the exchange has failed.
        """
        steps = {self.in_flight.pushed_step(partition.index) for partition in self.partitions} - {None, -1}
        if self._decided and steps:
            self._pass(1 + max(step for step in steps if step is not None))

    def _pass(self, step: int) -> None:
        """Waits until a pull at this clock is answered, or would be."""
        if self.in_flight.opened < step:
            self.wait_pulled()
        if self.in_flight.opened < step:
            self._ask(step, nothing=True)
            self.wait_pulled()

    def _send_again(self) -> None:
        """Sends what was noted and is not acknowledged: Ctrl-C may have come before it was queued."""
        for frame in self.in_flight.unacked():
            self._connections[self.partitions[frame.partition].shard].send(frame)

    def _send_noted(self, frames: Sequence[wire.Frame]) -> None:
        by_shard: dict[int, list[wire.Frame]] = {}
        for frame in frames:
            by_shard.setdefault(self.partitions[frame.partition].shard, []).append(frame)
        self.in_flight.note(frames)
        for shard, mine in by_shard.items():
            self._connections[shard].send(*mine)

    def _send_asked(self, by_shard: Sequence[Asked | None]) -> None:
        for connection, asked in zip(self._connections, by_shard, strict=False):  # none of a reader that left
            if asked is not None:
                connection.send(self._pull_frame(asked))

    def _pull_frame(self, asked: Asked) -> wire.Frame:
        flags = asked.flags  # what is read is no step's, and comes as it is
        codec = NOTHING if asked.nothing else AS_THEY_ARE if flags else self._rounded.codec
        return self._frame(
            wire.Kind.PULL,
            partition=asked.partitions[0],
            step=asked.step,
            flags=flags,
            codec=codec,
            version=int(self._traffic is not None and not flags and not asked.ahead),  # how long it waits
            meta=meta.listed(asked.partitions),
        )

    def _tell_shared(self, descriptors: tuple[int, ...]) -> None:
        for connection in self._connections:
            connection.send(self._share_frame(descriptors))

    def _share_frame(self, descriptors: tuple[int, ...]) -> wire.Frame:
        of_ranks = self._of_ranks if descriptors else ()
        every = (*descriptors, *of_ranks)
        return self._frame(wire.Kind.SHARE, version=len(every), hyper=len(of_ranks), descriptors=every)

    def _frame(self, kind: wire.Kind, **fields: Any) -> wire.Frame:
        fields |= {"table": self.number, "worker": self._worker, "rank": self._rank}
        fields |= {"incarnation": self._incarnation}
        return wire.Frame(kind=kind, **fields)

    # -- from connections ------------------------------------------------------------------------------

    def receive(self, frame: wire.Frame) -> None:
        """A frame of a shard about this table; on the connection's thread.

        Raises:
            FrameMalformed: see `lists.partitions`.
        """
        last = max(partitions(frame))
        if last >= self.plan.num_partitions:
            self.in_flight.fail(FrameMalformed(f"a shard speaks of partition {last}; there is none"))
        elif frame.kind in (wire.Kind.ACK, wire.Kind.FREE):
            if self._traffic is not None and frame.flags & wire.TOLD:
                self._tell(self._traffic, frame)  # first: who waits for the ACK goes on then
            self.in_flight.answered(frame)
        elif frame.kind is wire.Kind.PULLED:
            self._receive_pulled(frame)
        elif frame.kind is wire.Kind.SHARE:
            self.sharing.receive(frame)

    def landing(self, frame: wire.Frame, payload_bytes: int) -> memoryview | None:
        """The weights that a PULLED is about to bring, if they are waited for; else it lands elsewhere."""
        if frame.kind is not wire.Kind.PULLED or not self.in_flight.expected(frame):
            return None
        return self.memory.landing(self.partitions[frame.partition], frame.version, payload_bytes)

    def _tell(self, traffic: TrafficListener, ack: wire.Frame) -> None:
        """Tells what an ACK says of a push: nothing of one that came twice, or by an older shard."""
        for partition in partitions(ack):
            sent = self.in_flight.sent(partition)
            if sent is not None and sent.step == ack.step:
                traffic.acknowledged(
                    sent.step,
                    gap=ack.hyper,
                    read=sent.version,
                    applied=ack.version if ack.flags & wire.APPLIED else None,
                    dropped=bool(ack.flags & wire.DROPPED),
                    abstained=bool(ack.flags & wire.ABSTAINED),
                )

    def _receive_pulled(self, frame: wire.Frame) -> None:
        index, expected = frame.partition, self.in_flight.expected(frame)
        if not expected:
            return  # answered already, on a connection that has gone since
        if frame.codec == NOTHING:
            self.in_flight.came_open(frame)
            return
        if not frame.flags & wire.SHARED:  # else the shard has them where they are read
            try:
                self.memory.put(self.partitions[index], frame.version, frame.payload, frame.codec)
            except (FrameMalformed, OSError) as error:
                failure = self.sharing.cannot_keep(error) if isinstance(error, OSError) else error
                self.in_flight.fail(failure)
                return
        for partition in expected:
            self.memory.on_arrival(self.partitions[partition])
            if self._traffic is not None:
                waited_s = frame.hyper * 1e-6 if frame.flags & wire.TIMED else None
                self._traffic.pulled(frame.step - 1, waited_s)
        nbytes = len(frame.payload) or sum([self._sizes[partition] for partition in expected])
        # An answer to a mapped table says that its step has closed.
        spread = self.in_flight.came(frame, nbytes=nbytes, closed=self.memory.mapped)
        if self._traffic is not None and spread is not None and self._ranks is None:
            self._traffic.spread(frame.step - 1, spread)

    def replay(self, shard: int) -> Iterator[wire.Frame]:
        """See `Peer.replay`: hyper-parameters, pushes without ACK or FREE, pulls without an answer."""
        pushes, asked = self.in_flight.again(shard)
        if self.memory.descriptors:
            yield self._share_frame(self.memory.descriptors)
        yield from self._hyper_frames  # read after the pushes: those that they refer to are there
        for push in pushes:
            if self._traffic is not None and push.kind is not wire.Kind.LOAD:
                self._traffic.resent(push.step)
            yield push
        if asked is not None:
            yield self._pull_frame(asked)

    def forget_broken_off(self) -> None:
        """Weights that were being asked for as Ctrl-C came are not waited for: perhaps nobody was asked.

        If somebody was, they come beside those that are asked for next, at the same clock.
        """
        if self._asking:
            self.in_flight.forget_asked()
            self._asking = False

    # -- weights of all ranks --------------------------------------------------------------------------

    def wait_pulled(
        self, report: Callable[[str, str], None] | None = None, wanted: frozenset[int] | None = None
    ) -> None:
        """Waits until the weights that were asked for are here, on all ranks of a group.

        Args:
            report: gets a text for people, now and then.
            wanted: partitions that are enough; None: all.

        Raises:
            PsError: the exchange has failed.
        """
        told = None if report is None else partial(self._report, report)
        if self._rank_weights is not None and self._rank_weights.pending:
            self._rank_weights.wait(told, wanted)
        else:
            self.in_flight.wait_pulled(told, wanted)

    def _report(self, report: Callable[[str, str], None], missing: Missing) -> None:
        behind = sorted(it for it, at in missing.clocks.items() if at < missing.step and it != self._worker)
        shards = list(missing.shards)
        text = f"waiting for weights of table {self.number} at step {missing.step} from shards {shards}"
        report(text, f"workers last seen behind it, on this table: {behind}" if behind else "")

    @property
    def all_pulled(self) -> bool:
        """Whether every weight asked for is here, on all ranks of a group."""
        if self._rank_weights is not None and self._rank_weights.pending:
            return self._rank_weights.arrived
        return self.in_flight.all_pulled

    def all_pulled_within(self, limit_s: float) -> bool:
        """Waits until every weight asked for is here, on all ranks of a group; whether before the limit.

        Raises:
            PsError: the exchange has failed.
        """
        if self._rank_weights is not None and not self._rank_weights.arrive_within(limit_s):
            return False
        return self.in_flight.all_pulled_within(limit_s)


def _fingerprint(hyper: Hyperparameters) -> int:
    return zlib.crc32(hyperparameters_to_proto(hyper).SerializeToString(deterministic=True))
