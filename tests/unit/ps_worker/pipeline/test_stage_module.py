"""A stage as a schedule calls it: shapes without values, and activations that are computed again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ps_wire.errors import PipelineError
from ps_worker.pipeline.stage_module import Autocast, StageModule, shapes_of

PLAIN, HALF = Autocast("cpu"), Autocast("cpu", torch.bfloat16)


def test_shapes_are_known_before_anything_is_computed() -> None:
    stages = [nn.Embedding(50, 8), nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(5)), nn.Flatten()]

    shapes = shapes_of(stages, [torch.zeros(2, 5, dtype=torch.int64)], PLAIN)

    assert [[tuple(it.shape) for it in of] for of in shapes] == [
        [(2, 5)],
        [(2, 5, 8)],
        [(2, 5, 3)],
        [(2, 15)],
    ]
    assert [of[0].requires_grad for of in shapes] == [False, True, True, True]
    assert stages[1][1].num_batches_tracked == 0


def test_an_example_that_does_not_fit_is_refused_with_what_came() -> None:
    with pytest.raises(PipelineError, match=r"stage 0 does not run with the example \(float32\[2, 7\]"):
        shapes_of([nn.Linear(8, 3)], [torch.zeros(2, 7)], PLAIN)


class Named(nn.Linear):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"logits": super().forward(x)}


def test_a_model_that_gives_what_is_no_tensor_is_refused_before_it_is_trained() -> None:
    with pytest.raises(PipelineError, match=r"stage 1 gives dict, and stages give tensors"):
        shapes_of([nn.Linear(8, 8), Named(8, 3)], [torch.zeros(2, 8)], PLAIN)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(3, 3), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x)


@pytest.mark.parametrize(("mode", "again"), [("never", 0), ("always", 4), ("except_last", 3)])
def test_activations_are_computed_again_of_the_micro_batches_of_which_they_are_not_kept(
    mode: str, again: int
) -> None:
    inner = Counting()
    stage = StageModule(inner, mode=mode, microbatches=4, autocast=PLAIN)
    for step in range(1, 3):
        stage.begin()
        for _ in range(4):
            stage(torch.ones(2, 3, requires_grad=True)).sum().backward()
        assert inner.calls == step * (4 + again)


class Half(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with HALF.forward():
            return super().forward(x)


def test_what_the_next_stage_has_no_memory_for_does_not_leave() -> None:
    """Autocast inside of a model is not seen where shapes are found out."""
    stages = [Half(3, 3), nn.Identity()]
    _, gives, _ = shapes_of(stages, [torch.zeros(2, 3)], PLAIN)
    stage = StageModule(stages[0], mode="never", microbatches=1, autocast=PLAIN, gives=gives)

    with pytest.raises(PipelineError, match=r"gives bfloat16\[2, 3\], and .* would give float32\[2, 3\]"):
        stage(torch.zeros(2, 3))

    plain = StageModule(nn.Linear(3, 3), mode="never", microbatches=1, autocast=PLAIN, gives=gives)
    assert plain(torch.zeros(2, 3)).shape == (2, 3)


@pytest.mark.parametrize(("made", "called"), [(PLAIN, HALF), (HALF, PLAIN), (HALF, HALF), (PLAIN, PLAIN)])
def test_a_pipeline_is_called_under_the_autocast_under_which_it_was_made(
    made: Autocast, called: Autocast
) -> None:
    with called.forward():
        now = Autocast.of_script("cpu")
    assert now == called
    if made == called:
        made.check(now)
        return
    with pytest.raises(PipelineError, match=f"was called under {made}, and .* under {called}"):
        made.check(now)
