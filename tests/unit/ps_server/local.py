"""One process that averages what workers pushed in rank order: what servers are compared with.

It averages in numpy and runs one torch optimizer over whole parameters: it shares no code with the servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ps_server.shard.optimizer.piece_optimizer import KNOWN
from ps_wire.spec.table import Hyperparameters, TableSpec

from .tables import Push


def mean_in_rank_order(parts: Sequence[tuple[float, np.ndarray]]) -> np.ndarray:
    """`(w0*g0 + w1*g1 + ...) / (w0 + w1 + ...)`: in the arrays' dtype, weights as they travel."""
    dtype = parts[0][1].dtype
    total = None
    for weight, values in parts:
        product = values * dtype.type(weight)
        total = product if total is None else total + product
    return np.asarray(total / dtype.type(sum(weight for weight, _ in parts)), dtype=dtype)


@dataclass(slots=True)
class Local:
    """One torch optimizer over whole parameters, fed the rank-order mean."""

    spec: TableSpec
    weights: list[torch.Tensor]
    _torch: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.weights = [weight.clone() for weight in self.weights]
        known = KNOWN[self.spec.optimizer.name]
        start = self.spec.optimizer.hyperparameters
        groups = [{"params": [w], **self._hyper(start, place)} for place, w in enumerate(self.weights)]
        kernel = {"fused": True} if known.fused else {"foreach": False}
        self._torch = known.cls(groups, **dict(start.groups[0]), **kernel)

    def _hyper(self, hyper: Hyperparameters, parameter: int) -> Mapping[str, object]:
        return dict(hyper.groups[self.spec.parameters[parameter].group])

    def step(self, pushes: Sequence[Push], hyper: Hyperparameters) -> None:
        """Averages what was pushed and takes one step; no step where nobody had a gradient."""
        takes = sorted((push for push in pushes if push.gradients is not None), key=lambda p: p.worker)
        for place, weight in enumerate(self.weights):
            self._torch.param_groups[place].update(self._hyper(hyper, place))
            weight.grad = self._mean(place, takes)
        if self.spec.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.weights, self.spec.clip_grad_norm)
        self._torch.step()

    def _mean(self, place: int, takes: Sequence[Push]) -> torch.Tensor | None:
        theirs = [push.gradients[place] for push in takes if push.gradients is not None]
        if all(gradient is None for gradient in theirs):
            return None
        zeros = torch.zeros_like(self.weights[place])
        arrays = [(zeros if gradient is None else gradient).numpy() for gradient in theirs]
        weights = [float(np.float32(push.weight)) for push in takes]
        return torch.from_numpy(mean_in_rank_order(list(zip(weights, arrays, strict=True))))
