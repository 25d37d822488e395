"""What a worker keeps beside its tables, and how it goes on after an eviction: a base of `Worker`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch

from ps_wire.errors import PsError, RolledBack, UsageError
from ps_worker.link import Link
from ps_worker.position import Positions
from ps_worker.table import Table
from ps_worker.wrapped import WrappedOptimizer

SETTLE_LIMIT_S = 5.0  # for acknowledgements of an unfinished step, when others wait for this worker to go


class WorkerState:
    """See the module's docstring."""

    ended: bool
    _link: Link
    _optimizers: list[WrappedOptimizer]
    _tables: list[Table]

    _saved: Positions | None = None
    _on_rollback: Callable[[int], None] | None

    def _end_loaders(self) -> None:
        raise NotImplementedError

    def _rewind(self, saved: Positions) -> None:
        raise NotImplementedError

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
            self._end_loaders()
        for optimizer in self._optimizers:
            optimizer.reenter(steps)
        for table in self._tables:
            table.reenter(steps[table.number])

    def _restored(self, saved: Mapping[str, torch.Tensor]) -> None:
        """This worker goes on from a snapshot, in which it had saved this."""
        self._saved = Positions.unpack(saved)
        if self._saved is not None:
            self._rewind(self._saved)

    def _announce(self) -> bool:
        """Whether steps are undone that the script has not heard of; an error unless it can be called.

        Raises:
            RolledBack: there is no `on_rollback`.
        """
        try:
            self._link.announce()
        except RolledBack as undone:
            for optimizer in self._optimizers:
                optimizer.abandon()  # what is there is of steps that are undone
            if self._saved is not None:  # again, for a batch may have been handed out since
                self._rewind(self._saved)
            if self._on_rollback is None:
                raise
            self._on_rollback(undone.step)
            return True
        return False

    @staticmethod
    def _let_go(optimizer: WrappedOptimizer) -> None:
        with suppress(PsError):  # then the others know already
            optimizer.release(SETTLE_LIMIT_S)
