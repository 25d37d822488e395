"""Pipelines as processes: each stage as a person starts it in a terminal of its own."""

from __future__ import annotations

from pathlib import Path

import torch

from .pipeline_script import batch_of, build, by_micro_batches
from .processes import Process, Start
from .servers import Servers, fresh_job

SCRIPT = str(Path(__file__).with_name("pipeline_script.py"))


def start_stages(
    spawn: Start,
    servers: Servers,
    *script: str,
    workers: int = 2,
    number: int | None = None,
    stages: int = 2,
    job: str = "",
    options: tuple[str, ...] = (),
) -> list[list[Process]]:
    """The stages of all workers of a job, by worker; of one `number` alone where it is given."""
    job = job or fresh_job()
    return [
        [
            spawn(
                *(*servers.worker(job), "--num-workers", str(workers)),
                *("--worker", str(worker), "--pipeline-stages", str(stages), "--stage", str(stage)),
                *options,
                *script,
            )
            for stage in range(stages)
        ]
        for worker in (range(workers) if number is None else [number])
    ]


def one_process(workers: int, steps: int, *, half: bool = False) -> tuple[torch.nn.Module, list[list[float]]]:
    """A loop over the same micro-batches in the same order, and the losses of each worker's batches."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)  # as the servers run it
    losses: list[list[float]] = [[] for _ in range(workers)]
    for step in range(steps):
        gradients = []
        for worker in range(workers):
            optimizer.zero_grad()
            losses[worker].append(by_micro_batches(model, *batch_of(worker, step), half=half))
            gradients.append([it.grad for it in model.parameters() if it.grad is not None])
        for parameter, *of in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = sum(of[1:], of[0]) / workers
        optimizer.step()
    return model, losses
