"""What a worker keeps beside its tables, and how it goes on after an eviction: a base of `Worker`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch

from ps_wire.allocator import give_back_freed_blocks
from ps_wire.errors import PsError, RolledBack, UsageError
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker import stopping
from ps_worker.link import Link
from ps_worker.position import Positions
from ps_worker.script_data import ScriptData
from ps_worker.settings import Settings
from ps_worker.table import Table
from ps_worker.waiting import LongWaits
from ps_worker.wrapped import WrappedOptimizer

SETTLE_LIMIT_S = 5.0  # for acknowledgements of an unfinished step, when others wait for this worker to go


class WorkerState:
    """See the module's docstring."""

    ended: bool
    _link: Link
    _optimizers: list[WrappedOptimizer]
    _tables: list[Table]

    _trimmed = False  # a first step was taken
    _metrics: dict[str, float]
    _data: ScriptData
    _waits: LongWaits
    _finishing: bool
    _finished: bool
    _leaving: bool
    _settings: Settings
    _on_rollback: Callable[[int], None] | None

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
            "start another --job to train again"
        )

    def register_state(self, name: str, kept: Any) -> None:
        """Keeps something with the job that each worker has for itself, such as a scheduler.

        A worker that joins while others train, or joins again after it was evicted, gets it from the one of
        them that has the lowest number, when it registers it: a scheduler goes on where theirs is. Random
        generators stay its own. All workers should register the same names. Buffers of wrapped models and
        `param_groups` go along without it.

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
        if not self._data.inside:
            self._link.capture.begin(optimizer.clocks)

    def _begin_batch(self) -> None:
        if not self._link.undone:  # else none counts before the script has heard of it
            self._renew()
        self._link.capture.begin()

    def _steps(self, step: int) -> None:
        """The pushes of a table's step are about to leave, which will be its `step`-th."""
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

    def _announce(self) -> bool:
        """Whether steps are undone that the script has not heard of; an error unless it can be called.

        Raises:
            RolledBack: there is no `on_rollback`.
        """
        try:
            self._link.announce()
        except RolledBack as undone:
            if self._on_rollback is None:
                self._renew()
                raise
            for optimizer in self._optimizers:
                optimizer.abandon()
            self._on_rollback(undone.step)
            return True
        return False

    def _renew(self) -> None:
        """The script begins with another batch: what it computed before is no part of the next step."""
        for optimizer in self._optimizers:
            optimizer.renew()
        for table in self._tables:
            table.renew()

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
