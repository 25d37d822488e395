"""A small training script of tests: an optimizer, and a loop over steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tests.component.models import loss_of

STEPS = 4


def sgd(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **kind)


def train(rank: int, model: nn.Module, optimizer: Any, steps: Iterable[int] = range(STEPS)) -> None:
    for step in steps:
        loss_of(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()
