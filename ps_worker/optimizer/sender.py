"""What a wrapped optimizer sends in a step: gradients or an abstention, unscaled and clipped; its base.

It must not know when a step begins or ends.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ps_worker.optimizer.bucket_gradients import Unscale
from ps_worker.optimizer.remote_state import RemoteStateOptimizer
from ps_worker.optimizer.table_gradients import Mode, TableGradients, changed_error

NORM_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds it


class Sender(RemoteStateOptimizer):
    """See the module's docstring."""

    step_number: int
    abstained: int
    _clip: float | None
    _log: Callable[[str], None]
    _mode: Mode
    _step_weight: float | None
    _tables: list[TableGradients]
    _weight: Callable[[], float]

    def _weigh(self) -> float:
        if self._step_weight is None:
            self._step_weight = self._weight()
        return self._step_weight

    def _scaling(self) -> tuple[float | None, float | None]:
        """What a `GradScaler` says of the step: its scale if gradients still have it, and overflows found."""
        scale, overflow = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        return None if scale is None else float(scale), None if overflow is None else float(overflow)

    def _unscale(self, scale: float) -> Unscale:
        """As plain torch does: kernels that take a scale divide by it, for others a scaler multiplies."""
        if "fused" in self.defaults:
            return lambda flat: flat.div_(scale)
        inverse = torch.tensor(scale, dtype=torch.float64, device="cpu").reciprocal().float().item()
        return lambda flat: flat.mul_(inverse)

    def _decide(self, *, scaled: bool) -> None:
        """After a watched step: overlap if nothing touched the gradients. Later: an error if so."""
        if any(table.left for table in self._tables):
            for table in self._tables:
                table.flush()
            if scaled:
                raise changed_error("step() was called by a GradScaler")
            for table in self._tables:
                table.check_left()
        elif scaled:
            self._mode = Mode.WAITING
        elif self._mode is Mode.WATCHING and any(table.seen for table in self._tables):
            untouched = all(table.change() is None for table in self._tables)
            self._mode = Mode.OVERLAPPING if untouched else Mode.WAITING

    def _send(self, unscale: Unscale | None, *, overflow: bool) -> None:
        if overflow or not any(table.there or table.left for table in self._tables):
            self._abstain(overflow=overflow)
        elif self._clip is None:
            for table in self._tables:
                table.send_rest(unscale)
        else:
            norm = sum([table.copy_all(unscale) for table in self._tables]) ** 0.5
            factor = torch.clamp(self._clip / torch.tensor(norm + NORM_EPSILON, device="cpu"), max=1.0).item()
            for table in self._tables:
                table.push_all(factor)

    def _abstain(self, *, overflow: bool) -> None:
        if not self.abstained and not overflow:
            self._log(f"step {self.step_number} has no gradient: this worker abstains (said once)")
        self.abstained += 1
        self._weigh()  # the samples of this step weigh in no other
        for table in self._tables:
            table.abstain()
