"""Schedules by name, and the stages that each rank runs under them."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.pipelining import schedules as torchs

from ps_wire.errors import PipelineError
from ps_worker.pipeline.schedules import SCHEDULES, ranks_of, schedule_of


@pytest.mark.parametrize(("name", "stages"), [("gpipe", 4), ("interleaved1f1b", 8), ("zero-bubble-v", 8)])
def test_stages_are_on_the_ranks_on_which_torch_expects_them(name: str, stages: int) -> None:
    found = schedule_of(name, ranks=4, stages=stages, microbatches=8)
    style = "v" if found.folded else "loop"

    expected = torchs.generate_stage_to_rank_mapping(4, stages, style=style)
    assert list(ranks_of(found, 4, stages)) == [expected[stage] for stage in range(stages)]


@pytest.mark.parametrize(
    ("name", "stages", "microbatches", "said"),
    [
        ("no such", 2, 4, "one of gpipe, 1f1b"),
        ("1f1b", 4, 4, "runs one stage on each"),
        ("1f1b", 3, 4, "stages is 3"),
        ("interleaved1f1b", 5, 4, "takes a multiple"),
        ("zero-bubble-v", 6, 4, "runs two stages"),
        ("1f1b", 2, 0, "microbatches must be >= 1"),
    ],
)
def test_what_does_not_fit_a_schedule_is_refused(
    name: str, stages: int, microbatches: int, said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        schedule_of(name, ranks=2, stages=stages, microbatches=microbatches)


def test_every_schedule_is_one_of_torchs() -> None:
    assert {it.make.__module__ for it in SCHEDULES.values()} == {torchs.__name__}
    assert torch.distributed.is_available()
