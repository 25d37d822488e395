"""The plan of a pipeline: the stages of a model with their costs, and the timetable of its schedule."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ps_wire.errors import PipelineError, UsageError
from ps_worker.pipeline import timetable
from ps_worker.pipeline.blocks import blocks_of
from ps_worker.pipeline.cost import cheapest_cuts, costs_of, memory_of, named_cuts, sizes_of
from ps_worker.pipeline.schedules import schedule_of
from ps_worker.pipeline.timetable import Action, Timed

Rows = tuple[tuple[Timed, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage; times and bytes that are sent are of one micro-batch, and 0 where nothing was measured.

    Attributes:
        modules: the names of its blocks.
        parameters: how many numbers.
        forward_s: of all blocks.
        backward_s: of all blocks.
        memory_bytes: of parameters, gradients, optimizer and the activations of all micro-batches in flight.
        sent_bytes: to the next stage; gradients of as many come back.
        in_flight: micro-batches whose activations it keeps at once, at most.
    """

    modules: tuple[str, ...]
    parameters: int
    forward_s: float
    backward_s: float
    memory_bytes: int
    sent_bytes: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A pipeline that does not run yet.

    Attributes:
        schedule: its name.
        microbatches: of a step.
        stages: in order.
        ticks: each rank's actions, where each takes one tick.
        idle_share: of the ticks.
        formula: the bubble of stages that take equally long, where it has a formula.
        times: each rank's actions in seconds; none where nothing was measured.
    """

    schedule: str
    microbatches: int
    stages: tuple[StagePlan, ...]
    ticks: Rows
    idle_share: float
    formula: float | None
    times: Rows | None


def planned(
    model: nn.Module,
    batch: Sequence[torch.Tensor],
    *,
    stages: int,
    ranks: int,
    schedule: str,
    microbatches: int,
    by: str,
    at: Sequence[str] = (),
    optimizer_states: int = 0,
) -> Plan:
    """The plan of a model.

    Args:
        model: on the device that is measured, or on `meta`.
        batch: an example of the model's inputs; empty: nothing is measured.
        stages: how many.
        ranks: processes that run them.
        schedule: its name.
        microbatches: that a batch is cut into.
        by: the cost that the cut makes even.
        at: the first block of each stage but the first, by name; in place of `by`.
        optimizer_states: numbers that the optimizer keeps per parameter in a stage's process.

    Raises:
        PipelineError: the model cannot be cut, or not so.
    """
    blocks = blocks_of(model)
    order = timetable.order_of(
        schedule_of(schedule, ranks=ranks, stages=stages, microbatches=microbatches),
        schedule,
        ranks=ranks,
        stages=stages,
        microbatches=microbatches,
    )
    held = timetable.in_flight(order)
    costs = costs_of(blocks, model, _microbatch(batch, microbatches)) if batch else sizes_of(blocks, model)
    if at:
        cuts = named_cuts(blocks, stages, at)
    elif batch or by == "parameters":
        cuts = cheapest_cuts(costs, stages, by, in_flight=held, optimizer_states=optimizer_states)
    else:
        raise PipelineError(
            f"to cut by {by}, blocks are run with an example: return the model and a batch, or cut by "
            "parameters"
        )
    found = tuple(
        StagePlan(
            modules=blocks.names[begin:end],
            parameters=sum(it.parameters for it in costs[begin:end]),
            forward_s=sum(it.forward_s for it in costs[begin:end]),
            backward_s=sum(it.backward_s for it in costs[begin:end]),
            memory_bytes=memory_of(costs[begin:end], held[stage], optimizer_states),
            sent_bytes=costs[end - 1].sent_bytes,
            in_flight=held[stage],
        )
        for stage, (begin, end) in enumerate(pairwise((*cuts, len(blocks))))
    )
    rows = timetable.timed(order, timetable.ticks(order))
    return Plan(
        schedule=schedule,
        microbatches=microbatches,
        stages=found,
        ticks=rows,
        idle_share=timetable.idle_share(rows),
        formula=timetable.formula(schedule, ranks, stages, microbatches),
        times=timetable.timed(order, _duration(found)) if batch else None,
    )


def load(text: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model that a function of a file makes, and an example batch if it gives one: `model.py:build`.

    Raises:
        UsageError: there is no such file or function, or it gives something else.
    """
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not file or not name.isidentifier():
        raise UsageError(f"a model is FILE:FUNCTION, as model.py:build, got {text!r}")
    if not path.is_file():
        raise UsageError(f"there is no file {file}")
    build = getattr(_imported(path), name, None)
    if not callable(build):
        raise UsageError(f"{file} has no function {name}")
    made = build()
    model, *batch = made if isinstance(made, tuple) else (made,)
    if len(batch) == 1 and isinstance(batch[0], tuple | list):
        batch = list(batch[0])
    if not isinstance(model, nn.Module) or not all(isinstance(it, torch.Tensor) for it in batch):
        kinds = ", ".join(type(it).__name__ for it in (model, *batch))
        raise UsageError(f"{text} gives {kinds}, and not a model, or a model and the tensors of a batch")
    return model, tuple(batch)


def _imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))  # as where the file is run
    spec.loader.exec_module(module)
    return module


def _microbatch(batch: Sequence[torch.Tensor], microbatches: int) -> list[torch.Tensor]:
    for it in batch:
        if it.dim() == 0 or len(it) % microbatches or not len(it):
            raise PipelineError(
                f"{microbatches} micro-batches do not divide a batch of shape {list(it.shape)} evenly"
            )
    return [it[: len(it) // microbatches] for it in batch]


def _duration(stages: Sequence[StagePlan]) -> Callable[[Action], float]:
    def duration(action: Action) -> float:
        stage = stages[action.stage]
        if action.kind == timetable.FORWARD:
            return stage.forward_s
        return stage.backward_s if action.kind == timetable.BACKWARD else stage.backward_s / 2

    return duration
