"""One table on one shard: its cells, and what frames about it mean.

It checks what a frame says against the plan and hands it to the right cell. It must not know
connections beyond their `Outlet`, nor the coordinator.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from ps_server.agreement.clipping import Clipping, holders
from ps_server.agreement.gate import Gate
from ps_server.agreement.messages import Report
from ps_server.agreement.tally import StepTally
from ps_server.rpc.complaints import Complaints
from ps_server.shard.optimizer import piece_optimizer
from ps_server.shard.optimizer.mean import Scratch
from ps_server.shard.optimizer.spares import Spares
from ps_server.shard.partition.backup_machine import machine_of
from ps_server.shard.partition.cell import Cell
from ps_server.shard.partition.gradient import Gradient
from ps_server.shard.partition.machine import Contribution, Ledger, Pull
from ps_server.shard.partition.screening import Screen
from ps_server.shard.partition.totals import Totals
from ps_server.shard.table.cuts import TableCuts
from ps_server.shard.table.double_buffer import DoubleBuffer, Region
from ps_server.shard.table.kept_hyperparameters import LEAST_SETS, KeptHyperparameters
from ps_server.shard.table.step_closer import StepCloser
from ps_server.shard.table.table_state import TableState
from ps_wire.errors import (
    FrameMalformed,
    FrameRefused,
    JobUnknown,
    PayloadMismatch,
    StrangerRefused,
)
from ps_wire.frames import frame as wire
from ps_wire.frames import meta
from ps_wire.frames.buffer import as_tensor
from ps_wire.frames.carrier import Message, Outlet
from ps_wire.frames.messages import hyperparameters_from_proto, parse_message
from ps_wire.spec import codec as codecs
from ps_wire.spec.nonfinite import NonFinite
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import Hyperparameters, TableSpec
from ps_wire.v1 import spec_pb2


class ShardTable:
    """A table's cells on this shard. Thread-safe: each cell has its lock; `_lock` guards `_halves`.

    Attributes:
        spec: of the table.
        plan: of it.
        opening: number of the order that opened it.
        started: whether members may push and pull.
        cut: of all cells together.
        closer: of its steps.
    """

    def __init__(
        self,
        *,
        job: str,
        spec: TableSpec,
        plan: Plan,
        shard: int,
        gate: Gate,
        nonfinite: NonFinite = NonFinite.ERROR,
        opening: int = 0,
        most_hyper: int = LEAST_SETS,
        make_optimizer: Callable[..., piece_optimizer.PieceOptimizer] = piece_optimizer.PieceOptimizer,
        report: Callable[[Report], None] | None = None,
        submit: Callable[[Callable[[], None]], None] | None = None,
        complaints: Complaints | None = None,
    ) -> None:
        """Allocates the shard's slice of the weights; pages are touched when they are loaded.

        Args:
            job: name.
            spec: the table.
            plan: of it.
            shard: number of this one.
            gate: of the job.
            nonfinite: of the job.
            opening: number of the order that opens the table.
            most_hyper: see `KeptHyperparameters`.
            make_optimizer: from a name, hyper-parameters and pieces.
            report: takes the shard's part of the norm of each clipped step, and with backup workers who is
                there; must not block. Needed where other shards hold parts, too.
            submit: has complete steps closed on other threads; None: on the thread that completes one.
            complaints: lines of the log about what is not applied; default: its own.
        """
        self.spec = spec
        self.plan = plan
        self.opening = opening
        self.started = False
        self._job = job
        self._shard = shard
        self._gate = gate
        self._lock = threading.Lock()
        self._halves: DoubleBuffer | None = None
        self._hyper = KeptHyperparameters(most_hyper)
        self._cells: dict[int, Cell] = {}
        partitions = list(self.plan.partitions_of_shard(shard))
        clips = spec.clip_grad_norm is not None and partitions
        clipping = Clipping(len(partitions)) if clips else None
        tally = StepTally(len(partitions), gate.backup) if gate.backup and partitions else None
        scratch, spares = Scratch(), Spares()
        screen = Screen(nonfinite, job=job, spec=spec, complaints=complaints or Complaints())
        region = Region(plan, shard)
        memory = mmap.mmap(-1, region.nbytes)  # zeros, which torch would write
        for partition in partitions:
            bucket = self.plan.buckets[partition.bucket]
            group = spec.optimizer.hyperparameters.groups[bucket.group]
            self._cells[partition.index] = Cell(
                table=spec.number,
                index=partition.index,
                group=bucket.group,
                weights=region.of(memory, partition),
                pieces=self.plan.pieces(partition),
                optimizer=partial(make_optimizer, spec.optimizer.name, group),
                machine=machine_of(gate),
                screen=screen,
                scratch=scratch,
                spares=spares,
                clipping=clipping,
                tally=tally,
                later=partial(self._later, partition.index),
            )
        alone = holders(self.plan) == (shard,)
        self.closer = StepCloser(
            self._cells,
            job=job,
            spec=spec,
            opening=opening,
            backup=gate.backup,
            clipping=clipping,
            tally=tally,
            report=None if alone else report,
            submit=submit,
        )
        self.cut = TableCuts(self._cells.values(), settle=self.closer.settle)

    def _later(self, index: int, close: Callable[[], None]) -> None:
        self.closer.later(index, close)

    def forget(self, outlet: Outlet) -> None:
        """A connection is gone."""
        for cell in self._cells.values():
            cell.forget(outlet)

    @property
    def applies_at_once(self) -> bool:
        """Whether each push is applied when it comes, and not when its step closes."""
        return not self._gate.aggregates

    def halves(self) -> DoubleBuffer:
        """The weights in two halves, for workers to map; from the first call on they lie there.

        Raises:
            FrameRefused: the job is not plain `bsp`.
            OSError: see `DoubleBuffer`.
        """
        if not self._gate.aggregates or self._gate.backup:
            raise FrameRefused(f"the weights of table {self.spec.number} are mapped under plain bsp only")
        with self._lock:
            if self._halves is None:
                self._halves = DoubleBuffer(self.plan, self._shard)
                for index, cell in self._cells.items():
                    cell.double(self._halves.of(self.plan.partition(index)))
            return self._halves

    # -- frames ----------------------------------------------------------------------------------------

    def together(self, partition: int) -> AbstractContextManager[object]:
        """Has frames of one partition, taken one after the other by this thread, have no others between them.

        Only where pushes are applied at once: nothing is decided there on all cells, which is a lock outside.
        """
        assert self.applies_at_once
        cell = self._cells.get(partition)
        return nullcontext() if cell is None else cell.lock

    def start(self) -> None:
        """Members may push and pull; weights are no longer loaded."""
        self.started = True

    def receive(self, frame: wire.Frame, outlet: Outlet, *, member: bool) -> None:
        """Takes a frame of an authenticated worker.

        Raises:
            FrameRefused: the frame does not fit; nothing of it was taken.
            JobUnknown: the table has not started, or has no weights.
        """
        if frame.worker >= wire.FIRST_READER and frame.kind is not wire.Kind.PULL:
            raise StrangerRefused(f"a reader only reads: a {frame.kind.name} frame is a member's")
        handler = self._HANDLERS.get(frame.kind)
        if handler is None:
            raise FrameMalformed(f"a {frame.kind.name} frame does not go to a shard")
        handler(self, frame, outlet, member)

    def _receive_load(self, frame: wire.Frame, outlet: Outlet, _member: bool) -> None:
        cell, bringer = self.cell(frame.partition), (frame.worker, frame.incarnation)
        if self.started and not cell.has_weights_of(bringer):
            raise FrameRefused(f"table {self.spec.number} has started: its weights are no longer loaded")
        (values,) = self._terms(cell, frame)
        cell.set_weights(values, bringer)
        ack = wire.Frame(kind=wire.Kind.ACK, table=frame.table, partition=frame.partition, flags=wire.LOADED)
        outlet.send(Message(ack))

    def _receive_hyper(self, frame: wire.Frame, _outlet: Outlet, _member: bool) -> None:
        message = parse_message(spec_pb2.Hyperparameters, bytes(frame.meta))
        hyper = hyperparameters_from_proto(message)
        optimizer = self.spec.optimizer
        piece_optimizer.check_hyperparameters(optimizer.name, optimizer.hyperparameters.groups, hyper.groups)
        self._hyper.keep((frame.worker, frame.rank), frame.hyper, hyper)

    def _receive_push(self, frame: wire.Frame, outlet: Outlet, _member: bool) -> None:
        self._require_started()
        if frame.flags & wire.LISTED:
            raise FrameMalformed("a list of pushes has no payload, and this connection shares no memory")
        cell = self.cell(frame.partition)
        if not 0.0 < frame.weight < float("inf"):
            raise PayloadMismatch(f"the weight of a push must be finite and > 0, got {frame.weight}")
        present = meta.read_bitmap(frame.meta, len(cell.pieces))
        empty = not any(present) and not frame.nbytes
        gradient = Gradient(
            terms=(cell.values.zeros,) if empty else self._terms(cell, frame),
            present=present,
            hyper=self._hyper_of(frame),
            strict=bool(frame.flags & wire.STRICT),
            borrowed=bool(frame.flags & wire.SHARED),
            pulls=bool(frame.flags & wire.PULLS),
        )
        self._push(cell, frame, gradient, outlet)

    def _receive_abstain(self, frame: wire.Frame, outlet: Outlet, _member: bool) -> None:
        self._require_started()
        for cell in self._listed(frame):
            self._push(cell, frame, None, outlet)

    def _receive_pull(self, frame: wire.Frame, outlet: Outlet, member: bool) -> None:
        cells = list(self._listed(frame))
        if not codecs.known(frame.codec):
            raise PayloadMismatch(f"weights cannot be sent with codec {frame.codec}: it is unknown here")
        if frame.flags & wire.CUT:
            self._await_cut(frame, cells, outlet)
            return
        ended = bool(frame.flags & wire.READ)
        if ended or not member:
            for cell in cells:
                cell.read(frame.worker, frame.incarnation, outlet, frame.step, ended=ended)
            return
        self._require_started()
        for cell in cells:
            pull = Pull(
                worker=frame.worker,
                incarnation=frame.incarnation,
                clock=frame.step,
                asked_s=time.monotonic(),
                codec=codecs.codec_for(frame.codec, cell.values.now.dtype),
                timed=frame.version > 0,
            )
            cell.pull(pull, outlet)
        if self._gate.backup:
            self.closer.settle()

    def _await_cut(self, frame: wire.Frame, cells: list[Cell], outlet: Outlet) -> None:
        self._require_started()
        for cell in cells:
            cell.await_cut(frame.worker, frame.step, outlet)
        ack = wire.Frame(kind=wire.Kind.ACK, table=frame.table, partition=frame.partition, step=frame.step)
        outlet.send(Message(ack))

    _HANDLERS: Mapping[wire.Kind, Callable[[ShardTable, wire.Frame, Outlet, bool], None]] = {
        wire.Kind.LOAD: _receive_load,
        wire.Kind.HYPER: _receive_hyper,
        wire.Kind.PUSH: _receive_push,
        wire.Kind.ABSTAIN: _receive_abstain,
        wire.Kind.PULL: _receive_pull,
    }

    def _push(self, cell: Cell, frame: wire.Frame, gradient: Gradient | None, outlet: Outlet) -> None:
        contribution = Contribution(
            worker=frame.worker,
            incarnation=frame.incarnation,
            step=frame.step,
            version=frame.version,
            weight=frame.weight,
            payload=gradient,
        )
        cell.push(contribution, outlet, time.monotonic())
        if self._gate.aggregates:  # else each push is applied by itself, and there is nothing to close
            self.closer.check_hyper(cell, frame.step)
            self.closer.settle()

    # -- members ---------------------------------------------------------------------------------------

    def join(self, worker: int, incarnation: int, clock: int) -> None:
        """A worker becomes a member of every partition; `clock` is its first step."""
        now_s = time.monotonic()
        with self.closer.changing():
            for cell in self._cells.values():
                cell.join(worker, incarnation, clock, now_s)
        self.closer.settle()

    def leave(self, worker: int, incarnation: int) -> int:
        """A worker stops being a member; returns the newest clock over all partitions."""
        now_s = time.monotonic()
        with self.closer.changing():
            newest = [cell.leave(worker, incarnation, now_s) for cell in self._cells.values()]
            self._hyper.forget(worker)
        self.closer.settle()
        return max(newest, default=0)

    def prepare(self, worker: int, incarnation: int) -> int:
        """A worker is about to join; returns the first step that it can take on all partitions here."""
        with self.closer.changing():
            return max((cell.prepare(worker, incarnation) for cell in self._cells.values()), default=0)

    def fence(self, worker: int, incarnation: int) -> int | None:
        """A worker is about to be evicted; returns its smallest clock here, None where it is no member."""
        with self.closer.changing():
            clocks = [cell.fence(worker, incarnation) for cell in self._cells.values()]
        return min((clock for clock in clocks if clock is not None), default=None)

    def evict(self, worker: int, incarnation: int, limit: int, membership_epoch: int) -> int:
        """A fenced worker is no member any more: pushes of steps below `limit` count.

        Returns:
            The newest clock over all partitions.
        """
        now_s = time.monotonic()
        with self.closer.changing():
            self.closer.reopen(membership_epoch)
            newest = [cell.evict(worker, incarnation, limit, now_s) for cell in self._cells.values()]
            self._hyper.forget(worker)
        self.closer.settle()
        return max(newest, default=0)

    # -- all that it holds -----------------------------------------------------------------------------

    def dump(self, *, going_on: bool = False) -> TableState:
        """The table as it stands, partition after partition.

        Args:
            going_on: somebody goes on in this moment: with what is staged, said and owed. What is decided
                meanwhile is on all partitions, or on none. Else it is what a snapshot keeps.

        Raises:
            PayloadMismatch: see `Cell.dump`.
        """
        with self.closer.changing():
            cells = {index: cell.dump(going_on=going_on) for index, cell in self._cells.items()}
            if not going_on:
                return TableState(cells=cells)
            return TableState(cells=cells, hyper=self._hyper.dump(), membership_epoch=self.closer.dump())

    def load(self, state: TableState, *, going_on: bool = False) -> None:
        """Takes over a state of the same plan; it was opened, and has not started.

        Args:
            state: of all its partitions.
            going_on: members are those of the state, and what was staged, said and owed still is; `resume`
                must follow. Without it members come by `join`, as for a table that is new.

        Raises:
            PayloadMismatch: the state is not of this table; parts may have been loaded: it must not start.
        """
        if set(state.cells) != set(self._cells):
            raise PayloadMismatch(
                f"the state has {len(state.cells)} partitions, table {self.spec.number} has "
                f"{len(self._cells)} here"
            )
        for index, cell in state.cells.items():
            self._cells[index].load(cell, going_on=going_on)
        if not going_on:
            self.closer.choose_from_here()
            return
        self._hyper.load(state.hyper)
        self.closer.load(state.membership_epoch)
        others = {index: cell.tensors.other for index, cell in state.cells.items()}
        for index, other in others.items():
            if other is not None:
                self.halves()
                self._cells[index].load_other(other)

    def resume(self) -> None:
        """After `load` with `going_on` and the start of the table: steps that are complete close."""
        self.closer.choose_from_here()
        now_s = time.monotonic()
        for cell in self._cells.values():
            cell.resume(now_s)
        self.closer.settle()

    # -- checks ----------------------------------------------------------------------------------------

    def _require_started(self) -> None:
        if not self.started:
            raise JobUnknown(f"table {self.spec.number} of job {self._job} has not started")

    def _listed(self, frame: wire.Frame) -> Iterator[Cell]:
        return iter([self.cell(index) for index in meta.read_listed(frame)])

    def _terms(self, cell: Cell, frame: wire.Frame) -> tuple[torch.Tensor, ...]:
        """The payload where it lies, or its terms: shape (E,) each, of the cell's dtype, or of 16 bits."""
        dtype = cell.values.now.dtype
        sent = codecs.travelling(frame.codec, dtype) if frame.kind is wire.Kind.PUSH else None
        takes, codec = (dtype, codecs.AS_THEY_ARE) if sent is None else (sent, frame.codec)
        expected = cell.values.now.numel() * takes.itemsize
        if frame.codec != codec or frame.nbytes != expected:
            raise PayloadMismatch(
                f"partition {frame.partition} of table {self.spec.number} takes {expected} bytes of "
                f"{str(takes).removeprefix('torch.')} (codec {codec}), "
                f"got {frame.nbytes} bytes with codec {frame.codec}",
                expected=expected,
                got=frame.nbytes,
            )
        return tuple(as_tensor(part, takes) for part in frame.terms or (frame.payload,))

    def _hyper_of(self, frame: wire.Frame) -> Hyperparameters:
        if frame.hyper == 0:
            return self.spec.optimizer.hyperparameters
        hyper = self._hyper.get((frame.worker, frame.rank), frame.hyper)
        if hyper is None:
            raise PayloadMismatch(f"worker {frame.worker} has sent no hyper-parameters {frame.hyper}")
        return hyper

    # -- figures ---------------------------------------------------------------------------------------

    def cells(self) -> tuple[Cell, ...]:
        """All cells, in backward order; to be read for figures only."""
        return tuple(self._cells.values())

    def cell(self, index: int) -> Cell:
        """The cell of a partition.

        Raises:
            PayloadMismatch: the partition is not on this shard.
        """
        cell = self._cells.get(index)
        if cell is None:
            raise PayloadMismatch(
                f"partition {index} of table {self.spec.number} is not on this shard", partition=index
            )
        return cell

    def partitions(self) -> tuple[int, ...]:
        """Numbers of the partitions here, in backward order."""
        return tuple(self._cells)

    def newest_clock(self) -> int:
        """The largest clock of a member, as the first partition here has it."""
        return max((cell.newest_clock() for cell in self.cells()[:1]), default=0)

    def totals(self) -> Totals:
        """Figures over all partitions, gathered once from each; waits for the locks of cells."""
        made = Totals()
        for cell in self._cells.values():
            cell.add_to(made)
        return made

    def ledger(self, worker: int) -> Ledger:
        """A worker's figures: counts summed over partitions, gap and gate wait the largest of one."""
        total = Ledger()
        for cell in self._cells.values():
            part = cell.ledger(worker)
            for name in ("received", "applied", "dropped", "abstained", "duplicates", "refused", "missed"):
                setattr(total, name, getattr(total, name) + getattr(part, name))
            total.max_gap = max(total.max_gap, part.max_gap)
            total.gate_wait_s = max(total.gate_wait_s, part.gate_wait_s)
        return total
