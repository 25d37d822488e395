"""One partition with its weights: the state machine's actions carried out on tensors.

Legend: E = elements of the partition, P = parameter pieces in it.

A cell's lock guards everything in it; it is held while a gradient is applied (about a millisecond per
4 MiB), and nothing under it waits for a peer: sending only queues. Weights change only under the lock, and
never in memory that a reply still leaves from (`versioned_weights.py`), so no reply is ever torn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from ps_server.agreement.attendance import Choice, Choose
from ps_server.agreement.clipping import Clipping
from ps_server.agreement.tally import StepTally
from ps_server.shard.optimizer.mean import Scratch, is_plain, widened
from ps_server.shard.optimizer.partition_tensors import PartitionTensors
from ps_server.shard.optimizer.piece_optimizer import PieceOptimizer, State
from ps_server.shard.optimizer.spares import Spares
from ps_server.shard.partition.cell_cut import CellCut
from ps_server.shard.partition.cell_state import CellState
from ps_server.shard.partition.gradient import Gradient, differ, gradient_of, owned, terms_of
from ps_server.shard.partition.lent_pushes import LentPushes
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
from ps_server.shard.partition.meters import Meters
from ps_server.shard.partition.owed_errors import OwedErrors
from ps_server.shard.partition.pending_close import PendingClose
from ps_server.shard.partition.replies import Replies
from ps_server.shard.partition.screening import Screen, Screening, mean_of
from ps_server.shard.partition.totals import Totals
from ps_wire.errors import JobUnknown, PayloadMismatch, PsError
from ps_wire.frames.buffer import as_tensor, bytes_of
from ps_wire.frames.carrier import Message, Outlet
from ps_wire.frames.shared_place import SharedPlace
from ps_wire.process import trace
from ps_wire.spec.codec import AS_THEY_ARE, NOTHING
from ps_wire.spec.plan import Piece
from ps_wire.spec.table import Hyperparameters


class Cell:
    """A partition of one table on one shard.

    Attributes:
        lock: guards everything here; reentrant, since what was kept during a cut is given again under it.
        machine: decides.
        values: weights and optimizer.
        cut: of this partition; what is kept back for it.
        screening: what may not be applied.
        loans: pushes that are read in workers' memory.
        owed: errors that workers have not heard.
        replies: makes frames.
        outlets: worker -> where its frames go.
        group: of the optimizer, whose hyper-parameters hold here.
        pieces: of the partition.
        loaded: whether it has weights.
        hyper_mismatches: pushes whose hyper-parameters their step did not take.
        meters: counts and times, for people.
    """

    __slots__ = (
        "__weakref__",
        "_bringer",
        "_clipping",
        "_closing",
        "_index",
        "_scratch",
        "_table",
        "_tally",
        "cut",
        "group",
        "hyper_mismatches",
        "loaded",
        "loans",
        "lock",
        "machine",
        "meters",
        "outlets",
        "owed",
        "pieces",
        "replies",
        "screening",
        "values",
    )

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
        scratch: Scratch,
        spares: Spares | None = None,
        clipping: Clipping | None = None,
        tally: StepTally | None = None,
        later: Callable[[Callable[[], None]], None] = lambda close: close(),
    ) -> None:
        """Takes `weights`, shape (E,), over: nobody else writes them.

        `spares` are those of the table. `later` has a complete step closed, now or on another thread.
        """
        self.lock = threading.RLock()
        self.machine = machine
        self.cut = CellCut(machine, pulled=self._read)
        self.group = group
        self.pieces = tuple(pieces)
        self.values = PartitionTensors(weights, self.pieces, optimizer, spares)
        self.loans = LentPushes()
        self.owed = OwedErrors()
        self.screening = Screening(screen, self.pieces, self.owed, index=index, scratch=scratch)
        self.replies = Replies(table, index)
        self.outlets: dict[int, Outlet] = {}
        self.loaded = False
        self.hyper_mismatches = 0
        self.meters = Meters()
        self._table = table
        self._index = index
        self._scratch = scratch
        self._clipping = clipping
        self._tally = tally
        self._closing = PendingClose(later)
        self._bringer: tuple[int, int] | None = None  # of the weights, before the table starts

    # -- inputs, from connections and from the coordinator's orders -----------------------------------

    def has_weights_of(self, bringer: tuple[int, int]) -> bool:
        """Whether it was this worker, in this incarnation, that has brought the weights."""
        with self.lock:
            return self._bringer == bringer

    def set_weights(self, values: torch.Tensor, bringer: tuple[int, int]) -> None:
        """Sets the weights, shape (E,), with an optimizer that has no state; before the table starts.

        What this worker has brought in this incarnation it may bring again, where an answer was late: that
        changes nothing, for it may have set the optimizer's state meanwhile.
        """
        with self.lock:
            if self._bringer == bringer:
                return
            self.values.set_weights(values)
            self.meters.received(values.nbytes)
            self.loaded, self._bringer = True, bringer

    def double(self, halves: tuple[torch.Tensor, torch.Tensor]) -> None:
        """From now on the weights are in these halves, of shape (E,) each, that workers map."""
        with self.lock:
            self.values.double(halves, self.machine.version, loaded=self.loaded)

    def push(self, contribution: Contribution, outlet: Outlet, now_s: float) -> None:
        """A contribution with a `Gradient`, or an abstention.

        Raises:
            NonFiniteGradient: one that this worker pushed before was not applied.
            HyperparametersDiffer: an earlier step did not take this worker's, which is strict.
            FrameRefused: as `StepMachine.push`.
        """
        with self.lock, trace.span("stage", self, contribution):
            again = partial(self.push, contribution, outlet, now_s)
            if self._keeps(contribution.worker, contribution.step, again, outlet, pushes=True):
                return
            self.owed.check(contribution.worker, contribution.incarnation, contribution.step)
            if self._closing.precedes(contribution.step):
                self._close_now()  # it was acknowledged: whoever goes on may do so at once
            gradient, found = None if contribution.abstains else gradient_of(contribution), None
            at_once = gradient is not None and not self.machine.gate.aggregates
            if gradient is not None and at_once and not self._steps_along(contribution, gradient, outlet):
                found = self.screening.nonfinite(gradient.values)
            if found is not None:
                actions = self.machine.push(replace(contribution, payload=None), now_s)
                self.screening.withheld(contribution, found)
            else:
                actions = self.machine.push(contribution, now_s)
            if gradient is not None:
                self.meters.received(gradient.nbytes)
                if gradient.borrowed and self.machine.holds(contribution):
                    self.loans.note(contribution)
            self.outlets[contribution.worker] = outlet
            self._carry_out(actions, now_s)

    def pull(self, pull: Pull, outlet: Outlet) -> None:
        """A member asks for the weights. Raises what `StepMachine.pull` raises."""
        with self.lock, trace.span("take a pull", self._index, pull):
            again = partial(self.pull, pull, outlet)
            if self._keeps(pull.worker, pull.clock, again, outlet, pushes=False):
                return
            self._require_loaded()
            self.outlets[pull.worker] = outlet
            self._carry_out(self.machine.pull(pull), pull.asked_s)

    def read(self, worker: int, incarnation: int, outlet: Outlet, step: int, *, ended: bool) -> None:
        """One who is no member asks for the weights: they are sent at once, with all that was acknowledged.

        Args:
            worker: who asks.
            incarnation: its.
            outlet: where to.
            step: that the answer repeats.
            ended: it knows that the job has ended; if that is wrong, it alone gets what nobody computed.

        Raises:
            NonFiniteGradient: its last push was not applied.
            HyperparametersDiffer: as for `push`.
        """
        with self.lock:
            self._require_loaded()
            if self._closing.announced:  # else the last step is missing, and what became of it
                self._close_now()
            self.owed.check(worker, incarnation)
            outlet.send(self._read(step, ended=ended))

    def decide(self, step: int, scale: float, now_s: float) -> None:
        """A clipped step that is complete here closes with this scale; another one is ignored."""
        with self.lock:
            if self._closing.decide(step):
                workers = frozenset(item.worker for item in self.machine.staged)
                self._decide(step, workers, scale, now_s)

    def forget(self, outlet: Outlet) -> None:
        """A connection is gone: nothing more is sent there."""
        with self.lock:
            for worker in [key for key, known in self.outlets.items() if known is outlet]:
                del self.outlets[worker]
            self.cut.forget(outlet)

    def _keeps(
        self, worker: int, step: int, again: Callable[[], None], outlet: Outlet, *, pushes: bool
    ) -> bool:
        def refuse(error: PsError) -> None:
            outlet.send(self.replies.refusal(worker, step, error))

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

    def import_state(self, states: Sequence[State], parts: Sequence[Piece] | None = None) -> None:
        """See `PartitionTensors.import_state`."""
        with self.lock:
            self.values.import_state(states, parts)

    # -- members that come and go while others train, and steps that are chosen -----------------------

    def prepare(self, worker: int, incarnation: int) -> int:
        """See `StepMachine.prepare`."""
        with self.lock:
            self.cut.leave(worker)
            first = self.machine.prepare(worker, incarnation)
            self._stands()
            return first

    def join(self, worker: int, incarnation: int, clock: int, now_s: float) -> None:
        """See `StepMachine.join`."""
        with self.lock:
            self.cut.leave(worker)
            self._carry_out(self.machine.join(worker, incarnation, clock, now_s), now_s)

    def leave(self, worker: int, incarnation: int, now_s: float) -> int:
        """See `StepMachine.leave`; returns the newest clock seen here.

        From then on the worker may do with its memory what it likes: what counts of it is copied.
        """
        with self.lock:
            self.cut.leave(worker)
            self._take_over(worker, incarnation)
            self._carry_out(self.machine.leave(worker, incarnation, now_s), now_s)
            return self.machine.newest_clock

    def fence(self, worker: int, incarnation: int) -> int | None:
        """See `StepMachine.fence`; nothing is sent to the worker any more, nor written to its memory."""
        with self.lock:
            clock = self.machine.fence(worker, incarnation)
            if clock is not None:
                self.cut.leave(worker)
                self.outlets.pop(worker, None)
                self._stands()
            return clock

    @trace.traced("evict")
    def evict(self, worker: int, incarnation: int, limit: int, now_s: float) -> int:
        """See `StepMachine.evict`; returns the newest clock seen here.

        What counts of the worker is copied, for it uses its memory again once it has joined again. A clipped
        step that waits for its scale is looked at again: the worker may have had a part in its norm.
        """
        with self.lock:
            self._take_over(worker, incarnation)
            self._closing.look_again()
            self._carry_out(self.machine.evict(worker, incarnation, limit, now_s), now_s)
            return self.machine.newest_clock

    def choose(self, choice: Choice, now_s: float) -> None:
        """See `BackupStepMachine.choose` and `catch_up`."""
        with self.lock:
            if isinstance(choice, Choose):
                actions = self.machine.choose(choice.step, choice.workers, now_s)
            else:
                actions = self.machine.catch_up(choice.late, choice.step, now_s)
            self._carry_out(actions, now_s)

    def _take_over(self, worker: int, incarnation: int) -> None:
        self.loans.release(worker, incarnation)
        self.machine.keep(worker, owned)

    def _stands(self) -> None:
        """With backup workers: who is there may have changed, and which weights are needed."""
        if self._tally is not None:
            self._tally.stands(self._index, self.machine.standing)
            self.values.keep_only(self.machine.needs())

    # -- all that it holds -----------------------------------------------------------------------------

    def dump(self, *, going_on: bool = False) -> CellState:
        """The partition as it stands; takes the lock, for a copy of what it holds.

        Args:
            going_on: somebody goes on in this moment; else it is what a snapshot keeps.

        Raises:
            PayloadMismatch: it has no weights, of which there is no snapshot.
        """
        with self.lock:
            if not self.loaded and not going_on:
                raise PayloadMismatch("a partition without weights has no state")
            machine = self.machine.dump()
            if going_on:  # in memory of ours: workers write in theirs once it is handed over
                machine = replace(machine, staged=tuple(map(owned, machine.staged)))
            state = CellState(
                machine=machine,
                tensors=self.values.dump(),
                loaded=self.loaded,
                hyper_mismatches=self.hyper_mismatches,
                owed=self.owed.dump(),
            )
        return state if going_on else state.saved()

    @trace.traced("restore")
    def load(self, state: CellState, *, going_on: bool = False) -> None:
        """Takes over a state, but for its other half: see `load_other`. Nothing has come here yet.

        Args:
            state: of the partition.
            going_on: members are those of the state, and what was staged and owed still is; without it
                members come by `join`.

        Raises:
            PayloadMismatch: it is of another partition.
        """
        if not going_on:
            state = state.vacated()
        with self.lock:
            self.values.load(state.tensors)
            self.machine.load(state.machine, time.monotonic())
            self.owed.load(state.owed)
            self.loaded = state.loaded
            self.hyper_mismatches = state.hyper_mismatches

    def load_other(self, values: torch.Tensor) -> None:
        """See `PartitionTensors.load_other`."""
        with self.lock:
            self.values.load_other(values)

    def resume(self, now_s: float) -> None:
        """Closes the step that what was loaded has completed, if there is one."""
        with self.lock:
            self._carry_out(self.machine.resume(now_s), now_s)

    # -- what the machine decided ----------------------------------------------------------------------

    def _carry_out(
        self, actions: Sequence[Action], now_s: float, average: torch.Tensor | None = None
    ) -> None:
        for action in actions:
            match action:
                case Apply():
                    self._apply(action, average)
                case Ack(worker=worker, step=step, outcome=outcome):
                    if outcome is not None:
                        self.meters.gaps.count(outcome.gap)
                    self._send(worker, self.replies.ack(action, lent=self.loans.is_lent(worker, step)))
                case Answer():
                    self._answer(action, now_s)
                case Complete(step=step):
                    self._closing.announce(step, self._close_now)
        self.cut.go_on()
        self._stands()

    def _close_now(self) -> None:
        """Looks at what was pushed, then closes the step; a clipped one waits for its scale.

        It may run long after the last push of the step, beside pulls of the next: it has a time of its own.
        """
        with self.lock:
            closing = self._closing.pop()
            with trace.span("close", self._index, closing):
                if closing is not None and self.machine.complete:  # else one has joined: it is given again
                    self._close(closing)

    def _close(self, step: int) -> None:
        found = None if self._steps_ahead() else self.screening.mean(self.machine)
        average = None if found is None else found.values
        if self._clipping is None:
            workers = frozenset(item.worker for item in self.machine.staged)
            self._decide(step, workers, 1.0, time.monotonic(), average)
            return
        self._closing.hold(step)
        norm = 0.0 if average is None else torch.linalg.vector_norm(average, dtype=torch.float64).item()
        self._clipping.complete(step, self._index, norm * norm)

    def _steps_ahead(self) -> bool:
        """Makes the next weights in one pass, where what is staged needs no mean; whether it did."""
        staged = self.machine.staged
        if not staged or self._clipping is not None or any(item.abstains for item in staged):
            return False
        gradients = [gradient_of(item) for item in staged]
        if not is_plain([item.weight for item in staged]) or not all(_present(gradients)):
            return False
        group = gradients[0].hyper.groups[self.group]
        terms, ranks = terms_of(gradients)
        return self.values.step_ahead(terms, group, ranks)

    def _steps_along(self, contribution: Contribution, gradient: Gradient, outlet: Outlet) -> bool:
        """Makes the next weights in one pass, also where their worker waits, if the push is applied now."""
        if not (self.machine.applies(contribution) and all(gradient.present) and len(gradient.terms) == 1):
            return False
        group = gradient.hyper.groups[self.group]

        def step(place: SharedPlace) -> bool:
            return self.values.step_along(gradient.terms[0], group, as_tensor(place, self.values.now.dtype))

        return outlet.write_along(self._table, self._index, self.machine.version + 1, step)

    def add_to(self, totals: Totals) -> None:
        """Adds its figures; waits for the lock, as all that is asked of a cell from outside does."""
        with self.lock:
            machine = self.machine
            totals.add_version(machine.version)
            totals.add_ledgers(machine.ledgers)
            totals.add_clocks(machine.clocks)
            totals.tau.update(machine.tau)
            totals.meters.add(self.meters)
            totals.add_steps(mixed=machine.mixed_steps, mismatches=self.hyper_mismatches)
            totals.add_bytes(weights=self.values.now.nbytes, optimizer=self.values.optimizer_bytes())

    def newest_clock(self) -> int:
        """The largest clock of a member; 0 where there is none."""
        with self.lock:
            return max((clock for _, clock in self.machine.clocks), default=0)

    def ledger(self, worker: int) -> Ledger:
        """The ledger of a worker's pushes here; a copy."""
        with self.lock:
            return replace(self.machine.ledgers.get(worker, Ledger()))

    def fail(self, error: PsError) -> None:
        """A bug of ours ended a step: all who wait here are told."""
        with self.lock:
            for worker in self.outlets:
                self._send(worker, self.replies.refusal(worker, self.machine.version, error))

    def _decide(
        self,
        step: int,
        workers: frozenset[int],
        scale: float,
        now_s: float,
        average: torch.Tensor | None = None,
    ) -> None:
        if step in self.machine.needs():
            self.values.keep(step)
        actions = self.machine.decide(step, workers, scale, now_s)
        if not any(isinstance(action, Apply) for action in actions):
            self.values.carry()
        self._carry_out(actions, now_s, average)
        self._give_back()

    def _give_back(self) -> None:
        """Tells workers that what they have lent is no longer read."""
        for lent in self.loans.release_below(self.machine.version):
            if not gradient_of(lent).pulls:
                self._send(lent.worker, self.replies.free(lent.worker, lent.step))

    @trace.traced("apply")
    def _apply(self, action: Apply, average: torch.Tensor | None) -> None:
        begun_s = time.perf_counter()
        gradients = [gradient_of(item) for item in action.contributions]
        hyper = gradients[0].hyper
        self._compare(action.contributions, hyper)
        if self.values.ahead:
            average = None
        elif not self.machine.gate.aggregates:
            average = widened(gradients[0].values, self._scratch)
        elif average is None:
            average = mean_of(action.contributions, self._scratch).values
        if average is not None and action.scale != 1.0:
            average = torch.mul(average, action.scale, out=self._scratch.take(average.dtype, average.numel()))
        self.values.apply(average, _present(gradients), hyper.groups[self.group])
        self.meters.applies.count(time.perf_counter() - begun_s)

    def _compare(self, contributions: Sequence[Contribution], hyper: Hyperparameters) -> None:
        for item in [item for item in contributions if gradient_of(item).hyper != hyper]:
            self.hyper_mismatches += 1
            if gradient_of(item).strict:
                self.owed.owe(item.worker, item.incarnation, differ(item.step, contributions[0].worker))

    def _answer(self, action: Answer, now_s: float) -> None:
        shared = [pull for pull in action.pulls if not pull.timed]
        for step, codec in sorted({(pull.clock, pull.codec) for pull in shared}):
            message = self._pulled(step, action.version, codec)  # one for all who asked it
            for pull in shared:
                if (pull.clock, pull.codec) == (step, codec):
                    self._send_pulled(pull, message, now_s)
        for pull in action.pulls:
            if pull.timed:
                waited_s = max(now_s - pull.asked_s, 0.0)
                self._send_pulled(pull, self._pulled(pull.clock, action.version, pull.codec, waited_s), now_s)

    def _send_pulled(self, pull: Pull, message: Message, now_s: float) -> None:
        error = self.owed.of(pull.worker, pull.incarnation)
        if error is not None:
            message = self.replies.refusal(pull.worker, pull.clock, error)
        else:
            self.meters.answered(len(message.frame.payload), max(now_s - pull.asked_s, 0.0))
        self._send(pull.worker, message)

    def _pulled(self, step: int, version: int, codec: int, waited_s: float | None = None) -> Message:
        clocks = self.machine.clocks
        if codec == NOTHING:
            nothing = memoryview(b"")
            return self.replies.pulled(step, version, clocks, nothing, codec=codec, waited_s=waited_s)
        exact = codec == AS_THEY_ARE
        if version != self.machine.version:
            payload = self.values.kept(version, codec)
        else:
            payload = self.values.payload if exact else self.values.rounded(codec, version)
        message = self.replies.pulled(step, version, clocks, payload, codec=codec, waited_s=waited_s)
        if exact and version == self.machine.version:
            self.values.sent(message)
        return message

    def _read(self, step: int, *, ended: bool = False) -> Message:
        """For who asks without pushing: before the job's end halves may be written before it has left."""
        machine = self.machine
        copies = self.values.doubled and not ended
        payload = bytes_of(self.values.now.clone()) if copies else self.values.payload
        self.meters.sent(len(payload))
        message = self.replies.pulled(step, machine.version, machine.clocks, payload, copied=copies)
        self.values.sent(message)
        return message

    def _send(self, worker: int, message: Message) -> None:
        outlet = self.outlets.get(worker)
        if outlet is not None:
            outlet.send(message)

    def _require_loaded(self) -> None:
        if not self.loaded:
            raise JobUnknown(
                f"partition {self._index} of table {self._table} has no weights yet",
                partition=self._index,
            )


def _present(gradients: Sequence[Gradient]) -> Sequence[bool]:
    """P flags: somebody has a gradient of the piece. Mostly one has all, which is seen without a loop."""
    for gradient in gradients:
        if all(gradient.present):
            return gradient.present
    return list(map(any, zip(*[gradient.present for gradient in gradients], strict=True)))
