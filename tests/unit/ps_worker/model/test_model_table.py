"""A model as a table: names, groups, what is refused, and what lies outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ps_wire.errors import ParameterUnsupported, UsageError
from ps_wire.spec.table import BucketOptions
from ps_worker.model.model_table import copy_into, model_table, outside_of, pack, parameters_of, unpack
from tests.component.models import Branches, Conv, Tied


def table(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return model_table(
        2,
        parameters_of(model, optimizer.param_groups),
        optimizer,
        optimizer.param_groups,
        buckets=BucketOptions(),
    )


def test_parameters_are_in_registration_order_with_their_groups():
    model = Branches()
    groups = [
        {"params": list(model.right.parameters())},
        {"params": [model.trunk.bias, model.left.weight], "lr": 0.5},
    ]
    got = table(model, torch.optim.SGD(groups, lr=0.1))
    assert got.number == 2
    assert [(entry.name, entry.group) for entry in got.parameters] == [
        ("trunk.bias", 1),
        ("left.weight", 1),
        ("right.weight", 0),
        ("right.bias", 0),
    ]
    assert [entry.shape for entry in got.parameters] == [(8,), (3, 8), (3, 8), (3,)]


def test_tied_parameters_come_once():
    names = [entry.name for entry in table(Tied()).parameters]
    assert names == ["embedding.weight", "middle.weight", "middle.bias"]


def test_an_optimizer_of_another_model_is_refused():
    model, other = Branches(), nn.Linear(2, 2)
    with pytest.raises(UsageError, match="2 parameters that the model does not have"):
        parameters_of(model, [{"params": [*model.parameters(), *other.parameters()]}])


def test_strides_travel_where_they_are_not_the_usual_ones():
    by_name = {entry.name: entry for entry in table(Conv()).parameters}
    assert by_name["conv.weight"].stride == (27, 1, 9, 3)
    assert by_name["out.weight"].stride == ()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_parameters_are_named(dtype: torch.dtype):
    model = nn.Module()
    model.odd = nn.Parameter(torch.zeros(3, dtype=dtype))
    with pytest.raises(ParameterUnsupported, match=rf"'odd' is complex .{dtype}.: keep it as two real ones"):
        table(model)


def test_dtypes_that_servers_do_not_hold_are_named():
    model = nn.Module()
    model.odd = nn.Parameter(torch.zeros(3, dtype=torch.float8_e5m2))
    with pytest.raises(ParameterUnsupported, match=r"'odd' has dtype float8_e5m2; .*float32, float64"):
        table(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_small_dtypes_have_masters_of_float32(dtype: torch.dtype):
    assert {entry.dtype for entry in table(Conv().to(dtype)).parameters} == {"float32"}


def test_lazy_parameters_are_named():
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ParameterUnsupported, match=r"'0\.weight' is lazy: run the model once"):
        table(model)
    model(torch.ones(2, 5))
    assert table(model).parameters[0].shape == (3, 5)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_parameters_are_named(layout: str):
    model = nn.Module()
    dense = torch.eye(3)
    model.odd = nn.Parameter(dense.to_sparse() if layout == "coo" else dense.to_sparse_csr())
    with pytest.raises(ParameterUnsupported, match=r"'odd' is torch\.sparse.*tables are dense"):
        table(model)


def test_outside_is_all_that_the_table_does_not_hold():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    inside = list(model[0].parameters())
    assert set(outside_of(model, inside)) == {
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
        "2.weight",
        "2.bias",
    }


def test_a_tied_parameter_inside_is_not_outside_by_its_other_name():
    model = Tied()
    assert outside_of(model, model.parameters()) == {}


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor(5),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.zeros(1).expand(4),
        torch.ones(3, requires_grad=True),
    ],
    ids=["strided", "scalar", "empty", "bool", "bfloat16", "expanded", "leaf"],
)
def test_packed_tensors_come_back(value: torch.Tensor):
    into = {"x": torch.zeros(value.shape, dtype=value.dtype)}
    copy_into(unpack(pack({"x": value})), into)
    assert torch.equal(into["x"], value)


def test_tensors_that_share_memory_are_packed_apart():
    whole = torch.arange(6.0)
    into = {"whole": torch.zeros(6), "part": torch.zeros(2), "again": torch.zeros(6)}
    copy_into(unpack(pack({"whole": whole, "part": whole[2:4], "again": whole})), into)
    assert torch.equal(into["whole"], whole)
    assert torch.equal(into["part"], whole[2:4])


def test_unpacking_sets_leaves_and_strided_tensors_in_place():
    leaf = torch.zeros(2, 3, requires_grad=True)
    strided = torch.zeros(3, 2).t()
    value = torch.arange(6.0).view(2, 3)
    copy_into(unpack(pack({"a": value, "b": value})), {"a": leaf, "b": strided})
    assert torch.equal(leaf, value)
    assert torch.equal(strided, value)


@pytest.mark.parametrize("other", [{}, {"x": torch.zeros(3)}], ids=["missing", "shape"])
def test_state_that_differs_copies_nothing(other: dict[str, torch.Tensor]):
    into = {"first": torch.zeros(1), "x": torch.zeros(2)}
    with pytest.raises(UsageError, match=r"'x' has shape \(2,\) here"):
        copy_into(unpack(pack({"first": torch.ones(1), **other})), into)
    assert float(into["first"]) == 0.0
