"""Cuts that a pipeline computes: by parameters nothing runs, by time and memory blocks do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ps_wire.errors import PipelineError
from ps_worker.pipeline.blocks import blocks_of
from ps_worker.pipeline.cuts import computed_cuts


class Never(nn.Linear):
    """It does not run."""

    def forward(self, x):
        raise AssertionError


class Keeps(nn.Module):
    """It keeps as many copies of its input for backward as it is told."""

    def __init__(self, copies):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(copies))

    def forward(self, x):
        for weight in self.weights:
            x = (x + 1.0) * weight
        return x


def cuts(model, by, schedule="1f1b", stages=2):
    return computed_cuts(
        blocks_of(model),
        model,
        [torch.ones(8, 4)],
        stages=stages,
        ranks=stages,
        by=by,
        schedule=schedule,
        microbatches=4,
    )


def test_by_parameters_nothing_is_run():
    assert cuts(nn.Sequential(Never(4, 4), Never(4, 4), Never(4, 16)), "parameters") == (0, 2)
    with pytest.raises(PipelineError, match="block 0 does not run with the example: AssertionError"):
        cuts(nn.Sequential(Never(4, 4), Never(4, 4)), "time")


def test_by_memory_a_stage_counts_what_its_schedule_holds():
    """Of two stages: under 1f1b two micro-batches and one, under gpipe four and four."""
    model = nn.Sequential(*(Keeps(3) for _ in range(6)))
    assert cuts(model, "memory", "gpipe") == (0, 3)
    assert cuts(model, "memory", "1f1b") == (0, 2)


def test_another_cost_is_refused():
    with pytest.raises(PipelineError, match="by time, memory, parameters or at names, got 'luck'"):
        cuts(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "luck")
