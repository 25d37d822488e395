"""torch's optimizers by the names of the command line, fused where torch has a fused CPU kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ps_lab.bench.optimizers import OPTIMIZERS

LEARNING_RATE = 1e-6  # weights stay of the order of their start, however many rounds


def make(name: str, parameters: Iterable[torch.Tensor], *, fused: bool = True) -> torch.optim.Optimizer:
    """The optimizer over these parameters, with the learning rate of all parties."""
    known = OPTIMIZERS[name]
    cls: type[torch.optim.Optimizer] = getattr(torch.optim, known.cls)
    options: dict[str, Any] = {"lr": LEARNING_RATE} | ({"fused": True} if fused and known.fused else {})
    return cls(parameters, **options)
