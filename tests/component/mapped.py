"""A model whose weights workers map, and what tests of it have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import ps_worker as ps
from tests.component.reference import batch
from tests.inside import exchange_of

SMALL = ps.BucketOptions(bucket_bytes=65_536, first_bucket_bytes=16_384, partition_bytes=8192)


class Wide(nn.Module):
    """Tensors of several pages, one of an odd size, and one that has no gradient in odd steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(67, 129)
        self.second = nn.Linear(129, 65)
        self.sometimes = nn.Parameter(torch.ones(4099))

    def forward(self, x: torch.Tensor, *, all_of_it: bool) -> torch.Tensor:
        out = self.second(torch.relu(self.first(x))).square().mean()
        return out + self.sometimes.sum() * 1e-3 if all_of_it else out


def sgd(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **kind)


def momentum(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **kind)


def adam(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2, **kind)


def script(rank: int, model: nn.Module, optimizer: Any) -> None:
    for step in range(6):
        model(batch(rank, step, 8, 67), all_of_it=step % 2 == 0).backward()
        optimizer.step()
        optimizer.zero_grad()


def mapped(optimizer: Any) -> Any:
    """The optimizer's exchange."""
    exchange = exchange_of(optimizer)
    assert exchange.memory.mapped
    return exchange
