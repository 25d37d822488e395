"""A model whose modules wait for their weights, and what tests of it have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import ps_worker as ps
from tests.component.last_moment import LastMoment
from tests.component.reference import batch, seeded
from tests.component.service import Cluster, run_workers
from tests.inside import arrival_of, exchange_of

PAGES = ps.BucketOptions(bucket_bytes=16_384, first_bucket_bytes=4096, partition_bytes=4096)
STEPS = 5


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(48, 96, bias=False)
        self.down = nn.Linear(96, 48, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    """Attention's `out_proj` is a module whose own forward is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(48, 2, batch_first=True)
        self.feed = Feed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.feed(x)


class Model(nn.Module):
    """Tensors of several pages; `scale` is the model's own, `out.weight` is `into.weight`."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(64, 48, bias=False)
        self.first = Block()
        self.second = Block()
        self.scale = nn.Parameter(torch.full((48,), 0.5))
        self.out = nn.Linear(64, 48, bias=False)
        self.out.weight = self.into.weight
        self.last = nn.Linear(48, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.first(self.into(x))) * self.scale
        return self.out(self.last(hidden))


def adam(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3, **kind)


def partitions_of(optimizer: Any, model: nn.Module, name: str) -> frozenset[int]:
    (table,) = arrival_of(optimizer)._tables
    return table.partitions_of[table.index_of[id(model.get_parameter(name))]]


def train(model: nn.Module, optimizer: Any, steps: Any, rank: int = 0, forward: Any = None) -> None:
    for step in steps:
        optimizer.zero_grad()
        (model if forward is None else forward)(batch(rank, step, 2, 3, 64)).square().mean().backward()
        optimizer.step()


def script(rank: int, model: nn.Module, optimizer: Any) -> None:
    train(model, optimizer, range(STEPS), rank)


def arriving(
    cluster: Cluster, body: Callable[[ps.Worker, Any, Any, LastMoment], Any], *, model: Any = None, **kw: Any
) -> Any:
    """Calls `body` after three steps; all weights of the fourth are held back."""

    def run(worker: ps.Worker) -> Any:
        mine = model if model is not None else seeded(Model)
        optimizer = worker.wrap(adam(mine), mine, overlap=True, buckets=PAGES)
        moments = LastMoment(exchange_of(optimizer), lambda _partition, step: step == 3)
        train(mine, optimizer, range(3))
        assert arrival_of(optimizer).under_way
        return body(worker, mine, optimizer, moments)

    (result,) = run_workers(cluster, run, **kw)
    return result


def bare(model: nn.Module) -> bool:
    """Whether no module has anything of ours."""
    return not any(
        module._state_dict_pre_hooks
        or "__reduce_ex__" in module.__dict__
        or any(hook.__name__ == "before_forward" for hook in module._forward_pre_hooks.values())
        for module in model.modules()
    )
