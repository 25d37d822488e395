"""A process keeps the parameters of its stages, as the same objects, and the others cost nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ps_wire.errors import PipelineError
from ps_worker.pipeline.own_parameters import let_go, materialize, shared_by

CPU = torch.device("cpu")


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
