"""What a pipeline refuses before anything runs: on all stages, with hosts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from ps_wire.errors import GroupBroken, PipelineError
from ps_wire.process.ranks import Ranks
from ps_worker.group.channel import Channel
from ps_worker.pipeline.blocks import blocks_of
from ps_worker.pipeline.cuts import cuts_of
from ps_worker.pipeline.pipeline import Pipeline
from tests.unit.ps_worker.group.wires import town


@dataclass(frozen=True)
class Place:
    """A group, as far as it is asked before a schedule is made."""

    channel: Channel
    stages: None = None

    @property
    def ranks(self) -> Ranks:
        return self.channel.ranks

    def broken(self, reason: str) -> GroupBroken:
        return self.channel.broken(reason)


class Bare(nn.Module):
    """Nobody makes its first values."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def model_of(
    width: int = 4, layers: int = 4, *, bare: bool = False, without: Collection[int] = (), seen: int = 1
) -> nn.Module:
    """Linear layers, of which those in `without` are on the meta device; the first has a buffer `seen`."""
    every = [nn.Linear(width, width, device="meta" if at in without else "cpu") for at in range(layers)]
    every[0].register_buffer("seen", torch.zeros(seen))
    return nn.Sequential(*every, *([Bare()] if bare else []))


def refused(*asked: dict[str, Any]) -> list[Any]:
    """What each stage hears; one dict for each: how it differs from what is right."""
    right = {
        "width": 4,
        "layers": 4,
        "bare": False,
        "without": (),
        "seen": 1,
        "batch": 8,
        "dtype": torch.float32,
        "microbatches": 4,
        "stages": len(asked),
        "cuts": None,
        "schedule": "1f1b",
        "autocast": False,
    }
    every: list[dict[str, Any]] = [{**right, **one} for one in asked]
    models = [
        model_of(
            *map(one.pop, ("width", "layers")), **{it: one.pop(it) for it in ("bare", "without", "seen")}
        )
        for one in every
    ]
    blocks = [blocks_of(model) for model in models]
    with town(len(asked)) as group:

        def make(rank: int) -> object:
            mine, model, place = every[rank], models[rank], Place(group.channels[rank])
            batch, dtype = mine.pop("batch"), mine.pop("dtype")
            example = () if batch is None else torch.zeros(batch, 4, dtype=dtype)
            shared = {"microbatches": mine.pop("microbatches"), "schedule": mine.pop("schedule")}
            cut = {"stages": mine.pop("stages"), "names": mine.pop("cuts"), "by": "parameters"}
            cuts = cuts_of(blocks[rank], place, model, example=example, **cut, **shared)  # type: ignore[arg-type]
            asked = {"asked_stages": cut["stages"], "asked_cuts": cut["names"]}
            half = mine.pop("autocast")
            options = {"checkpoint": "never", "example": example, **asked, **shared, **mine}
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                return Pipeline(model, blocks[rank], place, cuts=cuts, **options)  # type: ignore[arg-type]

        return group.run(make)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"microbatches": 3}, "microbatches is 3, which does not divide a batch of 8"),
        ({"microbatches": 0}, "microbatches must be >= 1, got 0"),
        ({"microbatches": 1}, "1f1b takes at least as many .*, got 1 for 2 stages: take more"),
        ({"schedule": "interleaved1f1b", "stages": 4, "microbatches": 5, "batch": 10}, "4 stages: .* rounds"),
        ({"batch": None}, "the example is a batch of the model's inputs"),
        ({"stages": 5}, "5 stages need as many blocks, and the model has 4"),
        ({"schedule": "2f2b"}, "schedule is one of gpipe"),
        ({"checkpoint": "sometimes"}, "checkpoint is one of never"),
        ({"cuts": ["3", "1"], "stages": 3}, "stages follow each other as blocks do"),
        ({"cuts": ["nine"]}, "no block is named 'nine'"),
        ({"width": 5}, r"stage 0 does not run with the example \(float32\[2, 4\]"),
        ({"bare": True}, r"module '4' \(Bare\) is on the meta device"),
        ({"dtype": torch.int64}, r"stage 0 does not run with the example \(int64\[2, 4\].*int64"),
    ],
)
def test_what_no_pipeline_can_do_is_refused_on_all_stages(asked: dict[str, Any], said: str) -> None:
    for found in refused(asked, asked):
        assert isinstance(found, PipelineError)
        with pytest.raises(PipelineError, match=said):
            raise found


@pytest.mark.parametrize(
    ("other", "ours", "theirs"),
    [
        ({"width": 6}, r"0.weight float32[4, 4]", "0.weight float32[6, 6]"),
        ({"layers": 5}, "no more", "4.weight float32[4, 4]"),
        ({"layers": 3}, "3.weight float32[4, 4]", "no more"),
        ({"seen": 2}, "0.seen float32[1]", "0.seen float32[2]"),
    ],
)
def test_of_models_that_differ_the_first_parameter_that_does_is_named(
    other: dict[str, Any], ours: str, theirs: str
) -> None:
    for found in refused({}, other):
        assert f" has {ours}, stage 1 on " in found.message
        assert found.message.endswith(f" has {theirs}")


@pytest.mark.parametrize(
    ("bare", "refuses"),
    [
        (((1, 2, 3), (0,)), True),  # cut before the second block: now before the third
        (((2, 3), (0, 1)), False),  # as it is now
        (((0, 1, 2, 3), (0, 1, 2, 3)), False),
    ],
)
def test_a_model_that_a_pipeline_before_has_cut_otherwise_is_refused(
    bare: tuple[tuple[int, ...], ...], refuses: bool
) -> None:
    """A block that has come to another stage would begin there with fresh values."""
    for found in refused({"without": bare[0]}, {"without": bare[1]}):
        said = "parameter 1.weight of stage 0 is on the meta device there" in getattr(found, "message", "")
        assert said == refuses, found


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"width": 6}, "the parameters of the model"),
        ({"schedule": "gpipe"}, "schedule"),
        ({"cuts": ["1"]}, "cuts"),
        ({"stages": 4}, "the number of stages"),
        ({"checkpoint": "always"}, "checkpoint"),
        ({"microbatches": 2}, "microbatches"),
        ({"batch": 16}, "example"),
        ({"autocast": True}, "autocast"),
    ],
)
def test_stages_that_differ_are_named_with_their_hosts_on_all_of_them(
    other: dict[str, Any], what: str
) -> None:
    for found in refused({}, other):
        assert isinstance(found, PipelineError), found
        assert f"stages differ in {what}: stage 0 on " in found.message
        assert ", stage 1 on " in found.message
