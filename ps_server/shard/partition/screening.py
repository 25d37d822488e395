"""Contributions that hold NaN or infinity: how they are found, and what their senders and people are told."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ps_server.log import logger
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
    """The choice of a job, for one table.

    Attributes:
        active: whether contributions are looked at.
    """

    def __init__(self, choice: NonFinite, *, job: str, spec: TableSpec) -> None:
        self.active = choice is not NonFinite.APPLY
        self._tells = choice is NonFinite.ERROR
        self._job = job
        self._spec = spec
        self._warned: tuple[int, int] | None = None

    def found(self, worker: int, step: int, piece: Piece, sent: torch.dtype) -> NonFiniteGradient | None:
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
        self._warn(error.message, (worker, step))
        return error if self._tells else None

    def overflowed(self, step: int, partition: int) -> None:
        """All contributions were withheld: each is finite, and their weighted mean is not."""
        self._warn(
            f"the mean of finite gradients overflowed in step {step} on partition {partition}: not applied",
            (-1, step),
        )

    def _warn(self, text: str, of: tuple[int, int]) -> None:
        """Once per worker and step, not per partition; where they are skipped the first one only."""
        if self._warned is None or (self._tells and self._warned != of):
            self._warned = of
            logger.warning("job %s table %d: %s", self._job, self._spec.number, text)
