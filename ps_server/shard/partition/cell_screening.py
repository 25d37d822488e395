"""What of a step's contributions may be applied, and who is told what its push came to.

A base of `Cell`, under whose lock everything happens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ps_server.shard.optimizer.mean import Mean, Scratch, mean
from ps_server.shard.partition.machine import Contribution, StepMachine
from ps_server.shard.partition.screening import Screen, first_nonfinite, looks_finite
from ps_wire.errors import PsError
from ps_wire.spec.plan import Piece


class CellScreening:
    """See the module's docstring.

    Attributes:
        pieces: of the partition.
    """

    pieces: tuple[Piece, ...]
    machine: StepMachine
    _index: int
    _screen: Screen
    _failed: dict[int, tuple[int, PsError]]

    def _screened(self, scratch: Scratch) -> torch.Tensor | None:
        """Withholds what may not be applied; the mean of the rest, None if there is none.

        The mean is looked at first: what is not finite in a contribution is not finite in it.
        """
        while self.pieces and (staged := [item for item in self.machine.staged if not item.abstains]):
            found = self._mean(staged, scratch)
            average = found.values
            if not self._screen.active or found.finite or (found.finite is None and looks_finite(average)):
                return average
            looked = [(item, self._first_nonfinite(item.payload.values)) for item in staged]
            bad = [(item, piece) for item, piece in looked if piece is not None]
            if not bad and self._first_nonfinite(average) is None:
                return average  # finite, and its sum is not
            if not bad:
                self._screen.overflowed(staged[0].step, self._index)
            for item in [item for item, _ in bad] or staged:
                self.machine.withhold(item.worker)
            for item, piece in bad:
                self._withheld(item, piece)
        return None

    def _nonfinite(self, values: torch.Tensor) -> Piece | None:
        if not self._screen.active or looks_finite(values):
            return None
        return self._first_nonfinite(values)

    def _first_nonfinite(self, values: torch.Tensor) -> Piece | None:
        return first_nonfinite(values, self.pieces)

    def _withheld(self, contribution: Contribution, piece: Piece) -> None:
        sent = contribution.payload.values.dtype
        error = self._screen.found(contribution.worker, contribution.step, piece, sent)
        if error is not None:
            self._failed[contribution.worker] = contribution.incarnation, error

    def _check_failed(self, worker: int, incarnation: int, step: int | None = None) -> None:
        """A worker whose push of an earlier step was not taken as it was is told at what it does next."""
        error = self._error_of(worker, incarnation)
        if error is not None and step != error.facts["step"]:
            raise error

    def _error_of(self, worker: int, incarnation: int) -> PsError | None:
        failed, error = self._failed.get(worker, (incarnation, None))
        return error if failed == incarnation else None

    def _mean(self, contributions: Sequence[Contribution], scratch: Scratch) -> Mean:
        values = [item.payload.values for item in contributions]
        return mean(values, [item.weight for item in contributions], scratch)
