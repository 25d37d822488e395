"""A process keeps the parameters of its stages, as the same objects, and the others cost nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ps_wire.errors import PipelineError
from ps_worker.memory.os_memory import PAGES
from ps_worker.pipeline.blocks import blocks_of
from ps_worker.pipeline.own_parameters import let_go, materialize, move, shared_by
from tests.anew import run_anew

CPU = torch.device("cpu")


LETS_GO = """
import torch
from torch import nn

from ps_wire.process.allocator import keep_large_blocks
from ps_worker.pipeline.own_parameters import let_go
from tests.pages import resident

keep_large_blocks(one_arena=False)
model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(8)))
places = [(it.data_ptr(), it.nbytes) for it in model.parameters()]
above = torch.ones(1000)  # blocks at the heap's end alone would go by themselves
let_go(model, {"0.weight"})
print(*(resident(*place) for place in places))
"""


def model_of() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_parameters_that_go_stay_those_of_the_optimizer() -> None:
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters())
    before = list(model.parameters())
    kept = model[0].weight.clone()

    let_go(model, {"0.weight", "0.bias"})

    assert [it.is_meta for it in model.parameters()] == [False, False, True, True, True, True]
    assert all(one is other for one, other in zip(model.parameters(), before, strict=True))
    assert optimizer.param_groups[0]["params"][5] is model[2].bias
    assert torch.equal(model[0].weight, kept)


def test_a_model_without_values_gets_the_same_first_ones_wherever_it_is_cut() -> None:
    parts = []
    for kept in ({"0.weight", "0.bias"}, {"0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}):
        with torch.device("meta"):
            model = model_of()
        state = torch.get_rng_state()
        materialize(model, kept, CPU, "job")
        assert torch.equal(torch.get_rng_state(), state)
        assert {name for name, it in model.named_parameters() if not it.is_meta} == kept
        assert model[1].running_var.eq(1.0).all()
        parts.append(dict(model.named_parameters()))

    assert torch.equal(parts[0]["0.bias"], parts[1]["0.bias"])
    assert parts[0]["0.bias"].abs().max() <= 0.5


def test_first_values_of_weights_that_two_modules_have_are_those_of_the_first_one() -> None:
    parts = []
    for kept in ({"0.weight"}, {"0.weight", "1.bias"}, {"1.bias"}):
        with torch.device("meta"):
            model = nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 50))
            model[1].weight = model[0].weight
        materialize(model, kept, CPU, "job")
        assert {name for name, it in model.named_parameters() if not it.is_meta} == kept
        parts.append(dict(model.named_parameters()))

    assert torch.equal(parts[0]["0.weight"], parts[1]["0.weight"])
    assert parts[0]["0.weight"].abs().max() > 1.0, "normal, as an embedding's are, not a layer's within 1/2"
    assert torch.equal(parts[1]["1.bias"], parts[2]["1.bias"])


def test_a_module_that_writes_into_those_within_it_leaves_what_has_values() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, device="meta"))
            self.inner = nn.Linear(4, 3)

        def reset_parameters(self) -> None:
            with torch.no_grad():
                self.scale.fill_(2.0)
                self.inner.weight.fill_(9.0)

    model = Head()
    before = model.inner.weight.detach().clone()
    materialize(model, {"scale", "inner.weight", "inner.bias"}, CPU, "job")
    assert model.scale.eq(2.0).all()
    assert torch.equal(model.inner.weight, before)


def test_what_has_values_already_keeps_them() -> None:
    model = nn.BatchNorm1d(3)
    with torch.no_grad():
        model.weight.fill_(7.0)
        model.running_mean.fill_(5.0)
    model.bias = nn.Parameter(torch.empty(3, device="meta"))
    materialize(model, {"weight", "bias"}, CPU, "job")
    assert model.weight.eq(7.0).all()
    assert model.running_mean.eq(5.0).all()
    assert model.bias.eq(0.0).all()


def test_a_module_that_makes_no_first_values_is_named() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), Bare())
    with pytest.raises(PipelineError, match=r"module '1' \(Bare\) is on the meta device"):
        materialize(model, {"1.scale"}, CPU, "job")


def test_who_holds_a_parameter_is_told_in_order() -> None:
    assert shared_by(iter([{"a"}, {"b"}, {"a"}])) == {"a": [0, 2], "b": [1]}


@pytest.mark.skipif(not PAGES.exists(), reason="no page map here")
def test_the_memory_of_parameters_that_go_is_the_systems_again() -> None:
    """Not the C allocator's, which keeps freed blocks of that size in a worker.

    In a process of its own: where a heap lies, and what lies above it, is what thousands of tests left of it.
    """
    run = run_anew("-c", LETS_GO)
    assert run.returncode == 0, run.stderr
    kept, *left = map(int, run.stdout.split())
    assert kept > 4_000_000
    assert sum(left) < len(left) * 400_000  # small blocks may lie there by now


class Opened(nn.Module):
    """Its buffer is used in the forward that is cut, and so is a part of a stage by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.register_buffer("scale", torch.empty(3))

    def reset_parameters(self) -> None:
        self.scale.fill_(2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) * self.scale
        return x


def test_first_values_of_buffers_are_there_in_stages_that_were_made_before() -> None:
    with torch.device("meta"):
        model = Opened()
    stage = blocks_of(model).stage(0, 1)

    materialize(model, {"blocks.0.weight", "blocks.0.bias"}, CPU, "job")

    assert model.scale.eq(2.0).all()
    assert stage(torch.ones(1, 3)).shape == (1, 3)


def test_what_stages_are_made_of_moves_to_their_device_and_stays_what_the_optimizer_holds() -> None:
    """Parameters, buffers, and constants that the forward makes; those of others stay where they are."""

    class Model(Opened):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.ones(3)

    model = Model()
    before = {name: id(it) for name, it in (*model.named_parameters(), *model.named_buffers())}
    stage = blocks_of(model).stage(1, 2)

    move([stage], torch.device("meta"))  # a device like any other

    assert {name for name, it in model.named_parameters() if it.is_meta} == {
        "blocks.1.weight",
        "blocks.1.bias",
    }
    assert all(it.is_meta for it in (*stage.parameters(), *stage.buffers()))
    assert len([*stage.buffers()]) == 2
    assert {name: id(it) for name, it in (*model.named_parameters(), *model.named_buffers())} == before
    assert all(isinstance(it, nn.Parameter) and it.requires_grad for it in model.parameters())
