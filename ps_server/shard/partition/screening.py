"""Contributions that hold NaN or infinity: how they are found and withheld, and who is told.

`Screen` is a job's choice for one table; `Screening` applies it to the steps of one cell, under the cell's
lock. They must not know frames or connections.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence

import torch

from ps_server.rpc.complaints import Complaints
from ps_server.shard.optimizer.mean import Mean, Scratch, is_plain, mean
from ps_server.shard.partition.gradient import gradient_of, terms_of
from ps_server.shard.partition.inputs import Contribution
from ps_server.shard.partition.machine import StepMachine
from ps_server.shard.partition.owed_errors import OwedErrors
from ps_wire.errors import NonFiniteGradient
from ps_wire.process import kernels, trace
from ps_wire.spec.nonfinite import NonFinite
from ps_wire.spec.plan import Piece
from ps_wire.spec.table import TableSpec

SHOWN_NAME = 200  # characters of a parameter's name in a message
REMEDY = "lower the learning rate, clip gradients, use a GradScaler, or start the job with --nonfinite skip"

FP16_REMEDY = "it travelled as fp16, where what is beyond 65504 is infinite: --wire-dtype bf16 or fp32; else "


@trace.traced("screen")
def looks_finite(values: torch.Tensor) -> bool:
    """One reduction: a NaN or infinity among the values never gets past it; a large finite sum may not."""
    if kernels.KERNELS is not None and kernels.fit([values]):
        return kernels.KERNELS.finite(values)
    wide = torch.promote_types(values.dtype, torch.float32)
    return math.isfinite(values.sum(dtype=wide).item())


@trace.traced("look for non-finite")
def first_nonfinite(values: torch.Tensor, pieces: Sequence[Piece]) -> Piece | None:
    """The first piece in which a value is not finite; padding between pieces is not looked at."""
    for piece in pieces:
        if not torch.isfinite(values[piece.offset : piece.offset + piece.numel]).all():
            return piece
    return None


class Screen:
    """The choice of a job, for one table. Thread-safe: all its cells have it.

    `_lock` guards of whom it was said lately; nothing else is taken under it.

    Attributes:
        active: whether contributions are looked at.
    """

    def __init__(self, choice: NonFinite, *, job: str, spec: TableSpec, complaints: Complaints) -> None:
        self.active = choice is not NonFinite.APPLY
        self._tells = choice is NonFinite.ERROR
        self._job = job
        self._spec = spec
        self._complaints = complaints
        self._lock = threading.Lock()
        # worker, -1 for all -> the newest incarnation and step of which it was said
        self._warned: dict[int, tuple[int, int]] = {}

    def found(
        self, worker: int, incarnation: int, step: int, piece: Piece, sent: torch.dtype
    ) -> NonFiniteGradient | None:
        """A contribution that travelled as `sent` was withheld; the error for its sender, if it gets one."""
        name = self._spec.parameters[piece.parameter].name[:SHOWN_NAME]
        error = NonFiniteGradient(
            f"the gradient of parameter {name!r} of worker {worker} has non-finite values in step {step}: "
            f"it was not applied; {FP16_REMEDY if sent is torch.float16 else ''}{REMEDY}",
            parameter=name,
            worker=worker,
            table=self._spec.number,
            step=step,
        )
        self._warn(error.message, worker, (incarnation, step))
        return error if self._tells else None

    def overflowed(self, step: int, partition: int) -> None:
        """All contributions were withheld: each is finite, and their weighted mean is not."""
        self._warn(
            f"the mean of finite gradients overflowed in step {step} on partition {partition}: not applied",
            -1,
            (0, step),
        )

    def _warn(self, text: str, worker: int, at: tuple[int, int]) -> None:
        """Once per worker and step, not per partition; where they are skipped the first one only."""
        with self._lock:
            known = at <= self._warned.get(worker, (-1, -1)) if self._tells else bool(self._warned)
            if not known:
                self._warned[worker] = at
        if not known:
            of = (self._job, self._spec.number, "not finite")
            self._complaints.say(
                logging.WARNING, f"job {self._job} table {self._spec.number}", "%s", text, of=of
            )


class Screening:
    """The screening of one cell's contributions. Not thread-safe: its cell has a lock."""

    __slots__ = ("_index", "_owed", "_pieces", "_scratch", "_screen")

    def __init__(
        self, screen: Screen, pieces: Sequence[Piece], owed: OwedErrors, *, index: int, scratch: Scratch
    ) -> None:
        """Looks at `pieces`, of partition `index`; whose push is withheld is told through `owed`."""
        self._screen = screen
        self._pieces = tuple(pieces)
        self._owed = owed
        self._index = index
        self._scratch = scratch

    def mean(self, machine: StepMachine) -> Mean | None:
        """Withholds in the machine what may not be applied; the mean of the rest, None if there is none.

        The mean is looked at first: what is not finite in a contribution is not finite in it.
        """
        while self._pieces and (staged := [item for item in machine.staged if not item.abstains]):
            found = mean_of(staged, self._scratch)
            average = found.values
            if not self._screen.active or found.finite or (found.finite is None and looks_finite(average)):
                return found
            looked = [(item, self._first_nonfinite(gradient_of(item).values)) for item in staged]
            bad = [(item, piece) for item, piece in looked if piece is not None]
            if not bad and self._first_nonfinite(average) is None:
                return found  # finite, and its sum is not
            if not bad:
                self._screen.overflowed(staged[0].step, self._index)
            for item in [item for item, _ in bad] or staged:
                machine.withhold(item.worker)
            for item, piece in bad:
                self.withheld(item, piece)
        return None

    def nonfinite(self, values: torch.Tensor) -> Piece | None:
        """The first piece for which a contribution with these values may not be applied."""
        if not self._screen.active or looks_finite(values):
            return None
        return self._first_nonfinite(values)

    def withheld(self, contribution: Contribution, piece: Piece) -> None:
        """A contribution was not applied because of this piece: its sender may be owed an error."""
        sent = gradient_of(contribution).dtype
        of = contribution
        error = self._screen.found(of.worker, of.incarnation, of.step, piece, sent)
        if error is not None:
            self._owed.owe(contribution.worker, contribution.incarnation, error)

    def _first_nonfinite(self, values: torch.Tensor) -> Piece | None:
        return first_nonfinite(values, self._pieces)


def mean_of(contributions: Sequence[Contribution], scratch: Scratch) -> Mean:
    """The weighted mean of contributions, none of which abstains; see `mean`."""
    gradients, weights = (
        [gradient_of(item) for item in contributions],
        [item.weight for item in contributions],
    )
    if not is_plain(weights):
        return mean([gradient.values for gradient in gradients], weights, scratch)
    terms, ranks = terms_of(gradients)
    return mean(terms, [1.0] * (len(terms) // ranks), scratch, ranks)
