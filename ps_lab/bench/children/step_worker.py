"""One process of the step benchmark: forward, backward, step, `zero_grad()`, several times a turn.

Alone it leaves the step out. With the project it is run by `ps-worker`. With DistributedDataParallel it steps
the fused optimizer itself. A turn ends when the last step's weights are there, so nothing of it runs during
another party's turn.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import ps_worker as ps
from ps_lab.bench.children import optimizers, step_models
from ps_lab.bench.turns import read_configuration, take_turns
from ps_wire.process.allocator import keep_large_blocks

START_LIMIT = dt.timedelta(minutes=5)


def buckets_of(bucket_mb: str, weight_bytes: int) -> ps.BucketOptions:
    """Options for "5" or "all"; 0 pushes each parameter by itself."""
    bucket_bytes = weight_bytes if bucket_mb == "all" else int(bucket_mb) << 20
    first = bucket_bytes if bucket_mb == "all" else min(1 << 20, bucket_bytes)
    return ps.BucketOptions(bucket_bytes=bucket_bytes, first_bucket_bytes=first)


def alone(configuration: Mapping[str, Any], model: nn.Module) -> None:
    """Computes only."""
    run(configuration, model, model.zero_grad, lambda: None)


def ddp(configuration: Mapping[str, Any], model: nn.Module) -> None:
    """Averages gradients with the other ranks while backward runs, and steps its own optimizer."""
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{configuration['host']}:{configuration['port']}",
        rank=configuration["rank"],
        world_size=configuration["world_size"],
        timeout=START_LIMIT,
    )
    parallel = nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, bucket_cap_mb=configuration["ddp_bucket_mb"]
    )
    optimizer = optimizers.make(configuration["optimizer"], parallel.parameters())

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    run(configuration, parallel, step, lambda: None)


def project(configuration: Mapping[str, Any], model: nn.Module) -> None:
    """Pushes gradients to the servers, which step, and pulls the weights."""
    weight_bytes = sum(item.numel() * item.element_size() for item in model.parameters())
    with ps.connect() as worker:
        optimizer = worker.wrap(
            optimizers.make(configuration["optimizer"], model.parameters(), fused=False),
            model,
            overlap=bool(configuration["overlap"]) and (worker.group_size > 1 or "auto"),
            gradient_as_bucket_view=True,  # as the other
            buckets=buckets_of(configuration["bucket_mb"], weight_bytes),
        )

        def step() -> None:
            optimizer.step()
            optimizer.zero_grad()

        number = worker.rank * worker.group_size + worker.group_rank
        run({**configuration, "rank": number}, model, step, worker.synchronize)


def run(
    configuration: Mapping[str, Any],
    model: nn.Module,
    step: Callable[[], object],
    settle: Callable[[], object],
) -> None:
    """Takes turns until told no more.

    Args:
        configuration: from the bench.
        model: to compute.
        step: called after each backward.
        settle: called at the end of a turn.
    """
    device = torch.device(configuration["device"])
    loss = step_models.make_loss(
        configuration["model"], configuration["batch_size"], configuration["rank"], device
    )

    def turn() -> None:
        for _ in range(configuration["steps"]):
            loss(model).backward()  # type: ignore[no-untyped-call]
            step()
        settle()
        torch.get_device_module(device).synchronize()

    parameters = list(model.parameters())
    take_turns(turn, tensors=len(parameters), parameters=sum(item.numel() for item in parameters))


def main() -> None:
    """Does as the configuration says."""
    keep_large_blocks(
        one_arena=False
    )  # as `ps-worker` does: without, who allocates gradients would pay for their pages
    configuration = read_configuration()
    torch.manual_seed(0)
    model = step_models.BUILD[configuration["model"]](configuration["split"]).to(configuration["device"])
    {"alone": alone, "ddp": ddp, "project": project}[configuration["mode"]](configuration, model)


if __name__ == "__main__":
    main()
