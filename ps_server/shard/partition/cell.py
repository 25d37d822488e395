"""One partition with its weights: the state machine's actions carried out on tensors.

Legend: E = elements of the partition, P = parameter pieces in it.

A cell's lock guards everything in it; it is held while a gradient is applied (about a millisecond per
4 MiB), and nothing under it waits for a peer: sending only queues. Weights change only under the lock, and
never in memory that a reply still leaves from (`versioned_weights.py`), so no reply is ever torn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from ps_server.agreement.clipping import Clipping
from ps_server.agreement.tally import StepTally
from ps_server.shard.optimizer.mean import Scratch, is_plain, widened
from ps_server.shard.optimizer.partition_tensors import PartitionTensors
from ps_server.shard.optimizer.piece_optimizer import PieceOptimizer, State
from ps_server.shard.partition.cell_cut import CutCell
from ps_server.shard.partition.cell_members import CellMembers
from ps_server.shard.partition.cell_screening import CellScreening
from ps_server.shard.partition.gradient import Gradient, differ
from ps_server.shard.partition.machine import (
    Ack,
    Action,
    Answer,
    Apply,
    Complete,
    Contribution,
    Ledger,
    Pull,
    StepMachine,
)
from ps_server.shard.partition.replies import Replies
from ps_server.shard.partition.screening import Screen
from ps_wire.errors import JobUnknown, PsError
from ps_wire.frames.buffer import bytes_of
from ps_wire.frames.carrier import Message, Outlet
from ps_wire.process import trace
from ps_wire.spec.codec import AS_THEY_ARE, NOTHING
from ps_wire.spec.plan import Piece
from ps_wire.spec.table import Hyperparameters


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFigures:
    """What a cell has come to, at one moment.

    Attributes:
        clocks: worker -> its clock, of every member.
    """

    version: int
    clocks: Mapping[int, int]
    bytes_in: int
    bytes_out: int
    mixed_steps: int
    hyper_mismatches: int
    weight_bytes: int
    optimizer_bytes: int


class Cell(CellMembers, CellScreening):
    """A partition of one table on one shard."""

    def __init__(
        self,
        *,
        table: int,
        index: int,
        group: int,
        weights: torch.Tensor,
        pieces: Sequence[Piece],
        optimizer: Callable[[Sequence[torch.Tensor]], PieceOptimizer],
        machine: StepMachine,
        screen: Screen,
        clipping: Clipping | None = None,
        quorum: StepTally | None = None,
        later: Callable[[Callable[[], None]], None] = lambda close: close(),
    ) -> None:
        """Takes `weights`, shape (E,), over: nobody else writes them.

        `later` has a complete step closed, now or on another thread.
        """
        self.lock = threading.RLock()  # what was kept during a cut is given again under it
        self.machine = machine
        self.cut = CutCell(machine, pulled=self._read)
        self.group = group
        self.pieces = tuple(pieces)
        self.values = PartitionTensors(weights, self.pieces, optimizer)
        self.loaded = False
        self.bytes_in = 0
        self.bytes_out = 0
        self.hyper_mismatches = 0
        self._table = table
        self._index = index
        self._replies = Replies(table, index)
        self._outlets: dict[int, Outlet] = {}
        self._screen = screen
        self._clipping = clipping
        self._quorum = quorum
        self._later = later
        self._closing: int | None = None  # a complete step that is about to be closed
        self._lent: dict[int, Contribution] = {}  # by worker: its values are still needed where they lie
        self._held: int | None = None  # a complete step that waits for its scale
        self._failed: dict[int, tuple[int, PsError]] = {}  # worker -> incarnation, what it gets

    # -- inputs, from connections and from the coordinator's orders -----------------------------------

    def load(self, values: torch.Tensor) -> None:
        """Sets the weights, shape (E,), with an optimizer that has no state; before the table starts."""
        with self.lock:
            self.values.load(values)
            self.bytes_in += values.nbytes
            self.loaded = True

    def double(self, halves: tuple[torch.Tensor, torch.Tensor]) -> None:
        """From now on the weights are in these halves, of shape (E,) each, that workers map."""
        with self.lock:
            self.values.double(halves, self.machine.version, loaded=self.loaded)

    def push(self, contribution: Contribution, outlet: Outlet, now_s: float, scratch: Scratch) -> None:
        """A contribution with a `Gradient`, or an abstention.

        Raises:
            NonFiniteGradient: one that this worker pushed before was not applied.
            HyperparametersDiffer: an earlier step did not take this worker's, which is strict.
            FrameRefused: as `StepMachine.push`.
        """
        with self.lock, trace.span("stage", self._index, contribution):
            again = partial(self.push, contribution, outlet, now_s, scratch)
            if self._keeps(contribution.worker, contribution.step, again, outlet, pushes=True):
                return
            self._check_failed(contribution.worker, contribution.incarnation, contribution.step)
            if self._closing is not None and contribution.step > self._closing:
                self._close_now(now_s, scratch)  # it was acknowledged: whoever goes on may do so at once
            gradient, found = contribution.payload, None
            if gradient is not None and not self.machine.gate.aggregates:
                found = self._nonfinite(gradient.values)
            if found is not None:
                actions = self.machine.push(replace(contribution, payload=None), now_s)
                self._withheld(contribution, found)
            else:
                actions = self.machine.push(contribution, now_s)
            if gradient is not None:
                self.bytes_in += gradient.values.nbytes
                if gradient.borrowed and any(item.payload is gradient for item in self.machine.staged):
                    self._lent[contribution.worker] = contribution
            self._outlets[contribution.worker] = outlet
            self._carry_out(actions, now_s, scratch)

    def pull(self, pull: Pull, outlet: Outlet, scratch: Scratch) -> None:
        """A member asks for the weights. Raises what `StepMachine.pull` raises."""
        with self.lock, trace.span("take a pull", self._index, pull):
            again = partial(self.pull, pull, outlet, scratch)
            if self._keeps(pull.worker, pull.clock, again, outlet, pushes=False):
                return
            self._require_loaded()
            self._outlets[pull.worker] = outlet
            self._carry_out(self.machine.pull(pull), pull.asked_s, scratch)

    def read(
        self, worker: int, incarnation: int, outlet: Outlet, step: int, scratch: Scratch, *, ended: bool
    ) -> None:
        """One who is no member asks for the weights: they are sent at once, with all that was acknowledged.

        Args:
            worker: who asks.
            incarnation: its.
            outlet: where to.
            step: that the answer repeats.
            scratch: of this thread.
            ended: it knows that the job has ended; if that is wrong, it alone gets what nobody computed.

        Raises:
            NonFiniteGradient: its last push was not applied.
            HyperparametersDiffer: as for `push`.
        """
        with self.lock:
            self._require_loaded()
            if self._closing is not None:  # else the last step is missing, and what became of it
                self._close_now(time.monotonic(), scratch)
            self._check_failed(worker, incarnation)
            outlet.send(self._read(step, ended=ended))

    def join(self, worker: int, incarnation: int, clock: int, now_s: float, scratch: Scratch) -> None:
        """See `StepMachine.join`."""
        with self.lock:
            self.cut.leave(worker)
            self._carry_out(self.machine.join(worker, incarnation, clock, now_s), now_s, scratch)

    def decide(self, step: int, scale: float, now_s: float, scratch: Scratch) -> None:
        """A clipped step that is complete here closes with this scale; another one is not news."""
        with self.lock:
            if self._held == step:
                self._held = None
                workers = frozenset(item.worker for item in self.machine.staged)
                self._decide(step, workers, scale, now_s, scratch)

    def forget(self, outlet: Outlet) -> None:
        """A connection is gone: nothing more is sent there."""
        with self.lock:
            for worker in [key for key, known in self._outlets.items() if known is outlet]:
                del self._outlets[worker]
            self.cut.forget(outlet)

    def _keeps(
        self, worker: int, step: int, again: Callable[[], None], outlet: Outlet, *, pushes: bool
    ) -> bool:
        def refuse(error: PsError) -> None:
            outlet.send(self._replies.refusal(worker, step, error))

        return self.cut.keeps(worker, step, again, refuse, pushes=pushes)

    def await_cut(self, reader: int, number: int, outlet: Outlet) -> None:
        """The weights go there at the moment of this cut."""
        with self.lock:
            self._require_loaded()
            self.cut.wait_for(reader, number, outlet)

    def export_state(self) -> list[State]:
        """See `PartitionTensors.export_state`."""
        with self.lock:
            return self.values.export_state()

    def import_state(self, states: Sequence[State], cuts: Sequence[Piece] | None = None) -> None:
        """See `PartitionTensors.import_state`."""
        with self.lock:
            self.values.import_state(states, cuts)

    # -- what the machine decided ----------------------------------------------------------------------

    def _carry_out(
        self, actions: Sequence[Action], now_s: float, scratch: Scratch, average: torch.Tensor | None = None
    ) -> None:
        for action in actions:
            match action:
                case Apply():
                    self._apply(action, scratch, average)
                case Ack(worker=worker, step=step):
                    lent = self._lent.get(worker)
                    is_lent = lent is not None and lent.step == step
                    self._send(worker, self._replies.ack(worker, step, lent=is_lent))
                case Answer():
                    self._answer(action)
                case Complete(step=step):
                    self._close(step, now_s, scratch)
        self.cut.go_on()
        self._stands()

    def _close(self, step: int, now_s: float, scratch: Scratch) -> None:
        """Has a complete step closed; one that is about to be is said again, since members have changed."""
        if step not in (self._held, self._closing):
            self._closing = step
            self._later(partial(self._close_now, now_s, scratch))

    def _close_now(self, now_s: float, scratch: Scratch) -> None:
        """Looks at what was pushed, then closes the step; a clipped one waits for its scale."""
        with self.lock, trace.span("close", self._index, self._closing):
            step, self._closing = self._closing, None
            if step is None or not self.machine.complete:  # one has joined: it is said again
                return
            average = None if self._steps_ahead() else self._screened(scratch)
            if self._clipping is None:
                workers = frozenset(item.worker for item in self.machine.staged)
                self._decide(step, workers, 1.0, now_s, scratch, average)
                return
            self._held = step
            norm = 0.0 if average is None else torch.linalg.vector_norm(average, dtype=torch.float64).item()
            self._clipping.complete(step, self._index, norm * norm)

    def _steps_ahead(self) -> bool:
        """What is staged needs no mean of its own: one pass over memory makes the next weights of it."""
        staged = self.machine.staged
        if not staged or self._clipping is not None or any(item.abstains for item in staged):
            return False
        gradients: list[Gradient] = [item.payload for item in staged]
        if not is_plain([item.weight for item in staged]) or not all(_present(gradients)):
            return False
        group = gradients[0].hyper.groups[self.group]
        return self.values.step_ahead([gradient.values for gradient in gradients], group)

    def figures(self) -> CellFigures:
        """Waits for the lock, as all that is asked of a cell from outside does."""
        with self.lock:
            return CellFigures(
                version=self.machine.version,
                clocks=dict(self.machine.clocks),
                bytes_in=self.bytes_in,
                bytes_out=self.bytes_out,
                mixed_steps=self.machine.mixed_steps,
                hyper_mismatches=self.hyper_mismatches,
                weight_bytes=self.values.now.nbytes,
                optimizer_bytes=self.values.optimizer_bytes(),
            )

    def ledger(self, worker: int) -> Ledger:
        """What has become of a worker's pushes here; a copy."""
        with self.lock:
            return replace(self.machine.ledgers.get(worker, Ledger()))

    def fail(self, error: PsError) -> None:
        """A bug of ours ended a step: all who wait here are told."""
        with self.lock:
            for worker in self._outlets:
                self._send(worker, self._replies.refusal(worker, self.machine.version, error))

    def _decide(
        self,
        step: int,
        workers: frozenset[int],
        scale: float,
        now_s: float,
        scratch: Scratch,
        average: torch.Tensor | None = None,
    ) -> None:
        if step in self.machine.needs():
            self.values.keep(step)
        actions = self.machine.decide(step, workers, scale, now_s)
        if not any(isinstance(action, Apply) for action in actions):
            self.values.carry()
        self._carry_out(actions, now_s, scratch, average)
        self._give_back()

    def _give_back(self) -> None:
        """Tells workers that what they have lent is no longer read."""
        for lent in [lent for lent in self._lent.values() if lent.step < self.machine.version]:
            del self._lent[lent.worker]
            if not lent.payload.pulls:
                self._send(lent.worker, self._replies.free(lent.worker, lent.step))

    @trace.traced("apply")
    def _apply(self, action: Apply, scratch: Scratch, average: torch.Tensor | None) -> None:
        gradients: list[Gradient] = [item.payload for item in action.contributions]
        hyper = gradients[0].hyper
        self._compare(action.contributions, hyper)
        if not self.machine.gate.aggregates:
            average = widened(gradients[0].values, scratch)
        elif average is None and not self.values.ahead:
            average = self._mean(action.contributions, scratch).values
        if average is not None and action.scale != 1.0:
            average = torch.mul(average, action.scale, out=scratch.take(average.dtype, average.numel()))
        self.values.apply(average, _present(gradients), hyper.groups[self.group])

    def _compare(self, contributions: Sequence[Contribution], hyper: Hyperparameters) -> None:
        for item in [item for item in contributions if item.payload.hyper != hyper]:
            self.hyper_mismatches += 1
            if item.payload.strict:
                self._failed[item.worker] = item.incarnation, differ(item.step, contributions[0].worker)

    def _answer(self, action: Answer) -> None:
        for step, codec in sorted({(pull.clock, pull.codec) for pull in action.pulls}):
            message = self._pulled(step, action.version, action.clocks, codec)  # one for all who asked it
            for pull in action.pulls:
                if (pull.clock, pull.codec) == (step, codec):
                    error = self._error_of(pull.worker, pull.incarnation)
                    refused = None if error is None else self._replies.refusal(pull.worker, step, error)
                    self._send(pull.worker, refused or message)

    def _pulled(self, step: int, version: int, clocks: tuple[tuple[int, int], ...], codec: int) -> Message:
        if codec == NOTHING:
            return self._replies.pulled(step, version, clocks, memoryview(b""), codec=codec)
        exact = codec == AS_THEY_ARE
        if version != self.machine.version:
            payload = self.values.kept(version, codec)
        else:
            payload = self.values.payload if exact else self.values.rounded(codec, version)
        self.bytes_out += len(payload)
        message = self._replies.pulled(step, version, clocks, payload, codec=codec)
        if exact and version == self.machine.version:
            self.values.sent(message)
        return message

    def _read(self, step: int, *, ended: bool = False) -> Message:
        """For who asks without pushing: before the job's end halves may be written before it has left."""
        machine = self.machine
        copies = self.values.doubled and not ended
        payload = bytes_of(self.values.now.clone()) if copies else self.values.payload
        self.bytes_out += len(payload)
        message = self._replies.pulled(step, machine.version, machine.clocks, payload, copied=copies)
        self.values.sent(message)
        return message

    def _send(self, worker: int, message: Message) -> None:
        outlet = self._outlets.get(worker)
        if outlet is not None:
            outlet.send(message)

    def _require_loaded(self) -> None:
        if not self.loaded:
            raise JobUnknown(
                f"partition {self._index} of table {self._table} has no weights yet",
                partition=self._index,
            )


def _present(gradients: Sequence[Gradient]) -> Iterator[bool]:
    """P flags: somebody has a gradient of the piece."""
    return map(any, zip(*[gradient.present for gradient in gradients], strict=True))
