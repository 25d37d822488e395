"""Where a worker's pipeline is cut: its rank 0 says it for all ranks.

It must not know what a stage holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ps_worker.group.channel import Said
from ps_worker.group.group import Group
from ps_worker.pipeline import timetable
from ps_worker.pipeline.blocks import Blocks
from ps_worker.pipeline.cost import cheapest_cuts, costs_of, named_cuts, sizes_of
from ps_worker.pipeline.schedules import schedule_of


def cuts_of(
    blocks: Blocks,
    group: Group,
    model: nn.Module,
    *,
    stages: int,
    names: Sequence[str] | None,
    by: str,
    example: torch.Tensor | Sequence[torch.Tensor],
    schedule: str,
    microbatches: int,
) -> list[int]:
    """The index of each stage's first block. All ranks call it.

    Args:
        blocks: of the model.
        group: of the ranks.
        model: whose blocks share the cost, where no cut is given.
        stages: how many.
        names: the first block of each stage but the first; None: they are computed.
        by: the cost that stages share.
        example: the model's inputs of one batch.
        schedule: its name.
        microbatches: parts of a batch.

    Raises:
        PipelineError: there are more stages than blocks, or the cuts are not in order; on all ranks.
    """

    def ask(_: list[Said]) -> Said:
        if names is not None:
            return Said({"cuts": list(named_cuts(blocks, stages, names))})
        inputs = (example,) if isinstance(example, torch.Tensor) else tuple(example)
        found = computed_cuts(
            blocks,
            model,
            inputs,
            stages=stages,
            ranks=group.ranks.size,
            by=by,
            schedule=schedule,
            microbatches=microbatches,
        )
        return Said({"cuts": list(found)})

    cuts: list[int] = group.channel.relay("worker.pipeline()", ask).fields["cuts"]
    return cuts


def computed_cuts(
    blocks: Blocks,
    model: nn.Module,
    inputs: Sequence[torch.Tensor],
    *,
    stages: int,
    ranks: int,
    by: str,
    schedule: str,
    microbatches: int,
) -> tuple[int, ...]:
    """The cut whose most expensive stage costs least; by time or memory, blocks are run with one micro-batch.

    Raises:
        PipelineError: as `cuts_of`, or a block does not run with the example.
    """
    held: tuple[int, ...] = ()
    if by == "memory":
        found = schedule_of(schedule, ranks=ranks, stages=stages, microbatches=microbatches)
        order = timetable.order_of(found, schedule, ranks=ranks, stages=stages, microbatches=microbatches)
        held = timetable.in_flight(order)
    if by in {"memory", "time"}:
        costs = costs_of(blocks, model, [it[: max(1, len(it) // max(1, microbatches))] for it in inputs])
    else:
        costs = sizes_of(blocks, model)
    return cheapest_cuts(costs, stages, by, in_flight=held)
