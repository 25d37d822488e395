"""Plain torch doing what a BSP job does whose workers round what travels, and such a job."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch

import ps_worker as ps
from ps_wire.sockets.shared_memory import AVAILABLE
from ps_worker.memory.os_memory import can_overlay
from tests.component.models import Mlp, loss_of
from tests.component.reference import seeded
from tests.component.service import Cluster, fresh_name, together
from tests.inside import link_of

STEPS = 5
make_model = partial(seeded, partial(Mlp, 600))  # large enough to be mapped
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SMALL = ps.BucketOptions(bucket_bytes=4096, first_bucket_bytes=4096, partition_bytes=4096)


def optimizer_of(model: torch.nn.Module, **kind: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **kind)


def rounded(values: torch.Tensor, wire_dtype: str) -> torch.Tensor:
    return values.to(DTYPES[wire_dtype]).float()


def reference(wire_dtypes: Sequence[str]) -> torch.nn.Module:
    """The float32 weights at the end: those of a worker per wire dtype, which computes on rounded ones."""

    def train() -> torch.nn.Module:
        master = make_model()
        optimizer = optimizer_of(master, fused=True)
        parameters = list(master.parameters())
        for step in range(STEPS):
            sums: list[torch.Tensor] = []
            for rank, wire_dtype in enumerate(wire_dtypes):
                model = copy.deepcopy(master)
                for parameter in model.parameters():
                    parameter.data = rounded(parameter.data, wire_dtype)
                loss_of(model, rank, step).backward()
                pushed = [rounded(parameter.grad, wire_dtype) for parameter in model.parameters()]
                sums = [one + other for one, other in zip(sums, pushed, strict=True)] if sums else pushed
            for parameter, total in zip(parameters, sums, strict=True):
                parameter.grad = total / len(wire_dtypes)
            optimizer.step()
            optimizer.zero_grad()
        return master

    return together([train])[0]


def train(worker: ps.Worker, wire_dtype: str, *, mapped: bool = False) -> torch.nn.Module:
    """The model after `finish`; between steps it holds what `wire_dtype` can hold."""
    model = make_model()
    optimizer = worker.wrap(optimizer_of(model), model, buckets=SMALL)
    assert link_of(worker).exchanges[0].memory.mapped == mapped
    for step in range(STEPS):
        loss_of(model, worker.rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        worker.synchronize()
        for parameter in model.parameters():
            assert torch.equal(parameter.data, rounded(parameter.data, wire_dtype))
    worker.finish()
    return model


def served(cluster: Cluster, wire_dtypes: Sequence[str], **settings: object) -> list[torch.nn.Module]:
    """The models after `finish`, of a worker per wire dtype."""
    job = fresh_name()

    def one(rank: int) -> torch.nn.Module:
        with ps.connect(
            servers=cluster.servers,
            job=job,
            num_workers=len(wire_dtypes),
            worker=rank,
            wire_dtype=wire_dtypes[rank],
            **cluster.settings,
            **settings,
        ) as worker:
            shares = not settings and wire_dtypes[rank] == "fp32"
            return train(worker, wire_dtypes[rank], mapped=shares and AVAILABLE and can_overlay())

    return together([lambda rank=rank: one(rank) for rank in range(len(wire_dtypes))])
