"""A table of one tensor, and a step of it whose gradient follows from worker and clock."""

from __future__ import annotations

import torch

import ps_worker as ps
from tests.until import LIMIT_S


def table_of(worker: ps.Worker, clip_grad_norm: float | None = None) -> ps.Table:
    return worker.table(
        {"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=0.1, momentum=0.9), clip_grad_norm=clip_grad_norm
    )


def step(table: ps.Table, rank: int) -> torch.Tensor:
    table.push({"w": torch.full((3000,), 1.0 + rank + table.step)})
    return table.pull().result(LIMIT_S).values["w"]
