"""What a worker keeps beside its tables, and how it goes on after an eviction: a base of `Worker`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from ps_wire.errors import PsError, RolledBack, UsageError
from ps_wire.process.allocator import give_back_freed_blocks
from ps_wire.spec.consistency import BSP
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.data.position import Positions
from ps_worker.data.script_data import ScriptData
from ps_worker.job.job_link import JobLink
from ps_worker.membership.together import LIMIT_S, Op, Together, Value
from ps_worker.optimizer.wrapped import WrappedOptimizer
from ps_worker.process import stopping
from ps_worker.process.one_thread import OneThread
from ps_worker.process.waiting import LongWaits
from ps_worker.settings import Settings
from ps_worker.table import Table

MANY_BATCHES = 20  # without a model on the servers: fewer may be looked at before it is there
SETTLE_LIMIT_S = 5.0  # for acknowledgements of an unfinished step, when others wait for this worker to go


class WorkerState:
    """See the module's docstring."""

    ended: bool
    _link: JobLink
    _optimizers: list[WrappedOptimizer]
    _tables: list[Table]

    _trimmed = False  # a first step was taken
    _metrics: dict[str, float]
    _data: ScriptData
    _together: Together
    _inside: OneThread
    _waits: LongWaits
    _finishing: bool
    _finished: bool
    _leaving: bool
    _settings: Settings
    _on_rollback: Callable[[int], None] | None
    rank: int
    _say: Callable[[str], None]
    _taken: tuple[Positions, Mapping[int, int]] | None = None  # a position, and steps that count
    _stands = False  # where the job was when this process came to it
    _at_epoch = False
    _epoch_over = False  # it waits in a call behind the last batch of an epoch, and takes steps there
    _untrained_said = False

    @property
    def step(self) -> int:
        """Steps that this worker has taken, over its tables the largest."""
        clocks = [optimizer.step_number for optimizer in self._optimizers]
        return max(clocks + [table.step for table in self._tables], default=0)

    def _closed(self) -> str | None:
        """Why no step can be taken any more, or None."""
        if self._leaving:
            return f"this worker has left job {self._settings.job}: connect again to train on"
        if self._finishing:
            return f"this worker has finished job {self._settings.job}: no step comes after finish()"
        return self._ended_text() if self.ended else None

    def _ended_text(self) -> str:
        return (
            f"job {self._settings.job} has ended: its final weights are loaded, there is nothing to train; "
            f"to train again, take another --job, or drop this one: ps-lab job drop {self._settings.job}"
        )

    def register_state(self, name: str, kept: Any) -> None:
        """Keeps something with the job that each worker has for itself, such as a scheduler.

        Whoever comes to a job that has begun gets it, when it registers it and again where its loop begins:
        from the worker with the lowest number that trains, or, where all had gone, as it was then. So a
        scheduler goes on where the job is. Random generators stay a worker's own. All workers should register
        the same names. Buffers of wrapped models and `param_groups` go along without it.

        Args:
            name: of it, up to 200 characters.
            kept: with `state_dict()` and `load_state_dict()`, or a `torch.Generator`, or a tensor, which is
                written in place.

        Raises:
            UsageError: the name is taken or cannot travel, or what is kept is of no such kind.
        """
        if name.startswith("@"):
            raise UsageError(f"register_state: {name!r}: names with @ are the library's own")
        self._link.register(name, kept)

    def synchronize(self) -> None:
        """Waits until all weights that were asked for are here. Raises `PsError` where the job cannot go on.

        To be called before the weights are read outside the model's forward: for an average, a checkpoint.
        """
        for optimizer in self._optimizers:
            optimizer.settle()

    # -- where the job is ------------------------------------------------------------------------------

    def _take_up(self, at: Positions, clocks: Mapping[int, int]) -> bool:
        """The script is to go on where another process was; whether it does.

        One that finishes has nothing to go on with. One without loaders knows better what it had.
        """
        if self._finishing or (at.worker == self.rank and not at.loaders and self._tables_of):
            return False
        self._data.take_up(at)
        self._together.go_on_at(at.calls)
        self._taken = at, dict(clocks)
        return True

    def _stand(self) -> None:
        """All tables are there, and the script is about to go on: how many of its steps the job has."""
        if not self._stands and self._tables_of:
            self._stands = True
            if self._link.resumed:
                self._link.first_position()
        if self._taken is None or not self._tables_of:
            return
        (at, ends), self._taken = self._taken, None
        mine = self._clocks()
        model = self._settings.consistency
        if not ends:  # of one that trains: what it has taken; in lockstep, where this one enters
            ends = mine if isinstance(model, BSP) and not model.backup else dict(at.clocks)
        behind = {table: max(ends.get(table, 0) - step, 0) for table, step in at.steps.items()}
        for owner, numbers in self._tables_of:
            owner.behind = behind.get(numbers[0], 0) if at.loaders else 0
        steps = {table: step - behind.get(table, 0) for table, step in mine.items()}
        self._link.note_taken(replace(at, steps=steps, clocks=mine))

    @property
    def _tables_of(self) -> list[tuple[WrappedOptimizer | Table, list[int]]]:
        """What takes steps, with the numbers of its tables."""
        tables: list[tuple[WrappedOptimizer | Table, list[int]]] = [(it, [it.number]) for it in self._tables]
        return [*((it, list(it.clocks)) for it in self._optimizers), *tables]

    def _is_behind(self) -> bool:
        """Whether the script takes steps again which the job has."""
        if not self._stands or self._taken is not None:
            self._stand()
        if not self._data.arrived:
            return False
        return any(it.behind for it in self._optimizers) or any(it.behind for it in self._tables)

    def _positions(self) -> Positions:
        """Where the script is: at a batch, unless its loop is about to begin an epoch.

        In a call at the end of an epoch, what lies behind its last batch has been done once (a schedule by
        epochs has stepped): whoever goes on from there goes on with the next epoch.
        """
        clocks = self._clocks()
        steps = {
            number: clocks[number] - owner.behind for owner, numbers in self._tables_of for number in numbers
        }
        at = replace(self._data.positions(), worker=self.rank, steps=steps, clocks=clocks)
        if at.between:
            return replace(at, inside=False, calls=at.ends[-1])
        if at.epoch is not None and self._epoch_over:
            return replace(at, epoch=at.epoch + 1, inside=False, calls=self._together.number + 1)
        return replace(at, inside=not self._at_epoch, calls=self._together.number)

    def _begin_epoch(self, epoch: int) -> bool:
        """The script's loop is about to begin an epoch; whether it is to."""
        if self.ended:
            return False
        self._stand()
        self._together.arrive()
        reply = self._link.begin_epoch(epoch)
        if reply.HasField("last"):
            self._say(f"{reply.why}: this loop ends")
            return False
        self._stand()
        if self._data.arrived and not self._link.at_epoch():
            self._at_epoch = True
            try:
                self._link.noting.at_epoch()
            finally:
                self._at_epoch = False
        return True

    def _loop_ended(self) -> None:
        """Behind the script's loop: who comes now goes on behind it, too."""
        if self._tables_of and not self.ended:
            self._link.noting.at_epoch()

    def stop_job(self, reason: str) -> int:
        """Ends the job for all workers, after the same epoch: the newest that one of them has begun.

        The loops over `worker.epochs` of all end after it, and loaders hand out nothing of a later one; then
        the scripts go on behind their loops, and finish. Who is behind trains to that epoch's end. Any
        worker may call it, in the middle of an epoch, too, and several may: the first one counts.

        Args:
            reason: which all are told, in one line.

        Returns:
            The last epoch.

        Raises:
            UsageError: the worker has left or finished, or the job has ended.
        """
        if (closed := self._closed()) is not None:
            raise UsageError(closed)
        reply = self._link.stop_job(reason)
        self._say(reply.why)
        return int(reply.last)

    # -- calls that all workers make -------------------------------------------------------------------

    def all_reduce(
        self, values: Mapping[str, Value] | Value, op: Op = "mean", *, limit_s: float = LIMIT_S
    ) -> Any:
        """Reduces numbers over all workers: metrics, and decisions that are the same on all.

        All workers get the same bits: the coordinator computes in float64, in the order of workers' numbers.
        All make the same calls of this kind, of `broadcast` and of `barrier` in the same order; it waits for
        all who are in the job, under `ssp` and `asp`, too. Who leaves, finishes or is evicted is not waited
        for, and its value does not count. Who takes steps again, as after a rollback or when it joins a job
        under way, gets what the others got, as long as that is kept: the last 64 calls, and 16 of before the
        first step. Its own values it gets alone, where the job has ended, and where it was sent back and has
        not begun there yet.

        Under `bsp` and `ssp` others may need steps of one that waits here: it abstains from those. Between
        `backward()` and `step()` it cannot.

        Args:
            values: by name, or one: numbers and small tensors, 4096 numbers in all. The same names and shapes
                on all workers.
            op: "mean", "sum", "min" or "max". NaN of one worker is NaN for all.
            limit_s: seconds to wait for the others.

        Returns:
            As `values`: floats for numbers, tensors for tensors (float64 where they are no floats).

        Raises:
            CallLimitExceeded: the others have not made the call in time; who was missing is named.
            JobMismatch: another worker makes another call; raised on all of them.
            RolledBack: the job went back, and the script has no loop of ours that goes back with it.
            UsageError: what is given cannot be reduced, or the worker has finished or left.
        """
        with self._inside:
            self._begin_call()
            return self._together.reduce(values, op, limit_s)

    def broadcast(self, value: Any, src: int = 0, *, limit_s: float = LIMIT_S) -> Any:
        """Gives all workers the value of one of them; see `all_reduce` for order, waiting and errors.

        Args:
            value: what JSON has, 32 KiB of it at most; that of the others does not matter.
            src: the worker whose value all get.
            limit_s: seconds to wait for the others.

        Returns:
            The value as JSON gives it back, on `src`, too: tuples are lists, keys are texts.

        Raises:
            JobUnknown: the worker `src` is not there.
        """
        if not 0 <= src < self._settings.num_workers:
            raise UsageError(f"broadcast: src must be a worker from 0 to {self._settings.num_workers - 1}")
        with self._inside:
            self._begin_call()
            return self._together.broadcast(value, source=src, own=src == self.rank, limit_s=limit_s)

    def barrier(self, *, limit_s: float = LIMIT_S) -> None:
        """Returns when all workers have called it; see `all_reduce` for order, waiting and errors."""
        with self._inside:
            self._begin_call()
            self._together.barrier(limit_s)

    def _sit_out(self, steps: Mapping[int, int]) -> bool:
        """Others wait at the gate for steps of this worker, which waits for them in a call: it abstains.

        Under `bsp`, where steps are the job's, the script takes them again when its next epoch begins, so
        that schedules count them.

        Args:
            steps: table -> the step that it is to come to.

        Returns:
            Whether it could: not between backward and `step()`, where a part of a step has left.
        """
        incarnation = self._link.incarnation
        self._epoch_over = self._data.between_epochs
        try:
            for owner, numbers in self._tables_of:
                if isinstance(owner, WrappedOptimizer):
                    owner.settle()
                    if owner.sends:
                        return False
                while self._link.incarnation == incarnation and any(
                    self._clocks()[number] < steps.get(number, 0) for number in numbers
                ):
                    self._data.take_step(self.step + 1)
                    owner.sit_out(again=self._settings.consistency == BSP() and self._epoch_over)
        finally:
            self._epoch_over = False
        return True

    def _collect(self, request: pb.CollectRequest, limit_s: float) -> pb.CollectReply | None:
        return self._link.collect(request, limit_s)

    def _begin_call(self) -> None:
        """Checks that a call that all workers make may be made.

        Raises:
            RolledBack: steps are undone, and the script is to go back by itself.
            UsageError: it has left, or finished.
        """
        if self._leaving or self._finishing:
            raise UsageError(self._closed() or "")
        self._announce()

    def _has_no_others(self) -> bool:
        """Whether a call that all workers make gives the own value."""
        return not self._settings.servers or self.ended

    def _reentered(self, steps: dict[int, int]) -> None:
        """This worker was evicted and has joined again."""
        self.ended = self._link.ended
        if self.ended:
            self._data.end()
        self._data.drop_batch()
        stepped = self._link.rounds.stepped
        for optimizer in self._optimizers:
            optimizer.reenter(steps, stepped=stepped)
        for table in self._tables:
            table.reenter(steps[table.number], void=bool(stepped) and table.number not in stepped)

    def _begin_forward(self, optimizer: WrappedOptimizer) -> None:
        if not self._data.has_loaders:
            self._link.capture.begin(optimizer.clocks)
            self._link.at_step_begin(self.step)

    def _say_untrained(self, batches: int = 1) -> None:
        """Says, once, that a script which has had so many batches has made no step of them on the servers."""
        if self._untrained_said or self.ended or self.step or self._data.batches < batches:
            return
        self._untrained_said = True
        if self._optimizers:
            self._say(
                f"WARNING: {self._data.batches} batches, and no step on the servers: call step() of what "
                "worker.wrap(optimizer, model) gives, not of the optimizer that went in"
            )
        elif not self._tables:
            self._say(
                f"WARNING: {self._data.batches} batches, and no model on the servers: where this script "
                "trains, each worker trains a model of its own. Call optimizer = "
                "worker.wrap(optimizer, model) first"
            )

    def _begin_batch(self) -> None:
        if not self._optimizers and not self._tables:
            self._say_untrained(MANY_BATCHES)
        behind = self._is_behind()
        self._together.arrive()
        if not self._link.undone:  # else none counts before the script has heard of it
            self._renew()
        if behind:
            self._link.begin_again()
            for owner, _ in self._tables_of:
                owner.replay()
        else:
            self._link.capture.begin()
        ready = self._data.arrived and self._data.between_steps and self._link.dropping() == behind
        if ready and not self._link.undone:
            self._link.at_step_begin(self.step)

    def _steps(self, step: int) -> None:
        """The pushes of a table's step are about to leave, which will be its `step`-th."""
        self._together.arrive()
        self._data.take_step(max(step, self.step))

    def _stepped(self, step: int) -> None:
        self._data.take_step(self.step)
        self._link.at_step_boundary(step)
        stopping.step_ended()
        if not self._trimmed:
            self._trimmed = True
            give_back_freed_blocks()  # the weights, and perhaps the gradients, as the script made them

    @property
    def place(self) -> stopping.Place:
        """Where the script is; with a loader of ours, it is in a step while it has batches of it."""
        if self._finished:
            return stopping.Place.DONE
        if self._finishing or self._leaving or not (self._optimizers or self._tables):
            return stopping.Place.BETWEEN
        sends = any(optimizer.sends for optimizer in self._optimizers)
        return stopping.Place.STEP if sends or self._data.has_batches() else stopping.Place.BETWEEN

    def _weigh(self, optimizer: int, weight: Callable[[], float]) -> float:
        """The first thing that a step of this optimizer does which has something to push."""
        self._steps(self._optimizers[optimizer].step_number + 1)
        return weight()

    # -- what heartbeats bring -------------------------------------------------------------------------

    def _progress(self) -> pb.Progress:
        return pb.Progress(
            step=self.step,
            samples=self._data.samples,
            waited_s=self._waited_s,
            metrics=dict(self._metrics),
            waits=self._waits.look(),
            calls=self._together.reported,
            taken=self._taken_steps(),
        )

    def _counted(self) -> tuple[int, int]:
        return self.step, self._data.samples

    def _whom(self) -> list[str]:
        return self._link.whom() if hasattr(self, "_link") else []

    @property
    def _waited_s(self) -> float:
        return sum(optimizer.waited_s for optimizer in self._optimizers)

    def _restored(self, saved: Mapping[str, torch.Tensor]) -> None:
        """This worker goes on from a snapshot, in which it had saved this."""
        positions = Positions.unpack(saved)
        if positions is not None:
            self._data.rewind(positions)
            self._together.go_on_at(positions.calls)

    def _announce(self) -> bool:
        """Whether steps are undone that the script has not heard of; an error where it cannot go back.

        Raises:
            RolledBack: there is no `on_rollback`, and no loop of ours that goes back.
        """
        try:
            self._link.announce()
        except RolledBack as undone:
            if self._on_rollback is None and not self._data.goes_on:
                self._renew()
                self._data.run_again()
                raise
            for optimizer in self._optimizers:
                optimizer.abandon()
            if self._on_rollback is not None:
                self._on_rollback(undone.step)
            return True
        return False

    def _renew(self) -> None:
        """The script begins with another batch: what it computed before is no part of the next step."""
        for optimizer in self._optimizers:
            optimizer.renew()
        for table in self._tables:
            table.renew()

    def _taken_steps(self) -> dict[int, int]:
        """Table -> steps whose pushes have left; one that SIGTERM ends has taken a step that has no end."""
        steps = self._clocks()
        for optimizer in self._optimizers:
            clocks = optimizer.clocks
            more = optimizer.step_number - next(iter(clocks.values()), 0)
            steps |= {table: clock + max(more, 0) for table, clock in clocks.items()}
        return steps

    def _clocks(self) -> dict[int, int]:
        clocks = {table.number: table.step for table in self._tables}
        for optimizer in self._optimizers:
            clocks |= optimizer.clocks
        return clocks

    @staticmethod
    def _let_go(optimizer: WrappedOptimizer) -> None:
        with suppress(PsError):  # then the others know already
            optimizer.release(SETTLE_LIMIT_S)

    def _settle_pushes(self) -> None:
        """What has left is on its way to the shards: once it is there, it counts when the worker has left."""
        until_s = time.monotonic() + SETTLE_LIMIT_S
        with suppress(PsError):
            for exchange in self._link.exchanges:
                exchange.wait_acked(limit_s=max(until_s - time.monotonic(), 0.0))
