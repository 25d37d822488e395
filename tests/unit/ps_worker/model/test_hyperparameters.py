"""Optimizers as data: every one of torch's travels and is the same on the other side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import ps_worker as ps
from ps_server.shard.optimizer import piece_optimizer
from ps_wire.errors import OptimizerUnsupported, UsageError
from ps_wire.frames.messages import hyperparameters_from_proto, hyperparameters_to_proto, parse_message
from ps_wire.v1 import spec_pb2
from ps_worker.model.hyperparameters import EXECUTION, read_groups, spec_of

NAMES = sorted(
    name
    for name, value in vars(torch.optim).items()
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
)
# What is not the default, so that a value that got lost shows.
GIVEN: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.3, "momentum": 0.7, "nesterov": True, "weight_decay": 0.2},
    "Adam": {"lr": 0.3, "betas": (0.1, 0.2), "amsgrad": True, "maximize": True},
    "AdamW": {"lr": 0.3, "betas": (0.1, 0.2), "eps": 1e-3, "weight_decay": 0.5},
    "Adagrad": {"lr": 0.3, "lr_decay": 0.1, "initial_accumulator_value": 0.25},
    "RMSprop": {"lr": 0.3, "centered": True, "momentum": 0.5},
    "Rprop": {"lr": 0.3, "etas": (0.4, 1.3), "step_sizes": (1e-4, 20)},
    "NAdam": {"lr": 0.3, "momentum_decay": 0.1, "decoupled_weight_decay": True},
    "RAdam": {"lr": 0.3, "decoupled_weight_decay": True, "weight_decay": 0.1},
}


def made(name: str, **given: Any) -> torch.optim.Optimizer:
    shape = (2, 2) if name == "Muon" else (3,)
    return getattr(torch.optim, name)([torch.nn.Parameter(torch.ones(shape))], **given)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "Adafactor"])
@pytest.mark.parametrize("given", [{}, None], ids=["default", "given"])
def test_every_optimizer_of_torch_travels(name: str, given: dict[str, Any] | None):
    optimizer = made(name, **(GIVEN.get(name, {}) if given is None else given))
    spec = spec_of(optimizer)
    assert spec.name == name
    sent = hyperparameters_to_proto(spec.hyperparameters).SerializeToString()
    arrived = hyperparameters_from_proto(parse_message(spec_pb2.Hyperparameters, sent))
    assert arrived == spec.hyperparameters
    (group,) = arrived.groups
    assert dict(group).keys() == optimizer.defaults.keys() - EXECUTION
    for key, value in group:
        expected = optimizer.param_groups[0][key]
        assert value == (tuple(expected) if isinstance(expected, list | tuple) else expected), key


def test_numbers_of_numpy_travel_as_numbers():
    optimizer = made("Adam", lr=0.5)
    optimizer.param_groups[0] |= {
        "lr": np.float32(0.25),
        "betas": (np.float32(0.5), 0.75),
        "eps": np.int64(1),
    }
    (group,) = read_groups(optimizer.defaults, optimizer.param_groups).groups
    assert {**dict(group), "lr": 0.25, "betas": (0.5, 0.75), "eps": 1.0} == dict(group)
    assert type(dict(group)["lr"]) is float


def test_a_flag_in_place_of_a_number_is_a_number_as_in_torch():
    optimizer = made("Adam", amsgrad=True)
    optimizer.param_groups[0]["lr"] = True
    (group,) = read_groups(optimizer.defaults, optimizer.param_groups).groups
    assert type(dict(group)["lr"]) is float
    assert dict(group)["amsgrad"] is True


def test_a_param_group_that_lacks_a_value_is_named():
    optimizer = made("Adam")
    del optimizer.param_groups[0]["eps"]
    with pytest.raises(UsageError, match="a param-group has no 'eps'"):
        read_groups(optimizer.defaults, optimizer.param_groups)


@pytest.mark.parametrize("name", sorted(piece_optimizer.KNOWN))
def test_what_arrives_makes_the_same_optimizer(name: str):
    """The server's own optimizer, made from the data, takes the same step to the bit."""
    given = GIVEN.get(name, {"lr": 0.3})
    kind = {"fused": True} if piece_optimizer.KNOWN[name].fused else {"foreach": False}
    mine = torch.nn.Parameter(torch.linspace(-1, 1, 32))
    theirs = mine.detach().clone()
    local = getattr(torch.optim, name)([mine], **given, **kind)
    (group,) = spec_of(made(name, **given)).hyperparameters.groups
    remote = piece_optimizer.PieceOptimizer(name, group, [theirs])
    for step in range(3):
        gradient = torch.sin(torch.arange(32.0) + step)
        mine.grad = gradient.clone()
        local.step()
        remote.step([gradient], group)
    assert torch.equal(mine.detach(), theirs)


def test_how_an_update_is_executed_does_not_travel():
    for kind in ({"foreach": True}, {"fused": True}, {"foreach": False}, {"differentiable": True}):
        assert spec_of(made("Adam", **kind)) == spec_of(made("Adam"))


def test_subclasses_and_strangers_are_refused():
    class Mine(torch.optim.SGD):
        pass

    class SGD(torch.optim.Optimizer):  # the name alone does not do
        def __init__(self) -> None:
            super().__init__([torch.nn.Parameter(torch.ones(1))], {"lr": 1.0})

    for optimizer in (Mine([torch.nn.Parameter(torch.ones(1))], lr=0.1), SGD()):
        with pytest.raises(OptimizerUnsupported, match="its update is code"):
            spec_of(optimizer)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {*piece_optimizer.KNOWN, "Adafactor"}))
def test_the_servers_refuse_what_is_not_element_wise_with_a_reason(name: str):
    """It travels like the others: who refuses is the one who would run it."""
    spec = spec_of(made(name, **({"lr": 0.1} if name == "SparseAdam" else {})))
    with pytest.raises(OptimizerUnsupported, match=f"{name}': .*servers run SGD") as caught:
        piece_optimizer.check(spec)
    assert piece_optimizer.REFUSED[name] in caught.value.message


def test_an_optimizer_whose_values_cannot_travel_is_refused_as_one():
    """Adafactor's eps is (None, 0.001)."""
    with pytest.raises(OptimizerUnsupported, match=r"Adafactor.*eps is \(None, 0.001\)"):
        spec_of(made("Adafactor"))


def test_a_tensor_as_learning_rate_is_a_number():
    (group,) = spec_of(
        made("Adam", lr=torch.tensor(0.25), betas=(torch.tensor(0.5), torch.tensor(0.75)))
    ).hyperparameters.groups
    assert dict(group)["lr"] == 0.25
    assert type(dict(group)["lr"]) is float
    assert dict(group)["betas"] == (0.5, 0.75)


def test_keys_of_schedulers_do_not_travel():
    optimizer = made("SGD", lr=0.1, momentum=0.9)
    before = read_groups(optimizer.defaults, optimizer.param_groups)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
    lr_scheduler.LinearLR(optimizer)
    assert {"initial_lr", "max_lr"} <= optimizer.param_groups[0].keys()
    optimizer.step()
    scheduler.step()
    now = read_groups(optimizer.defaults, optimizer.param_groups)
    assert [name for name, _ in now.groups[0]] == [name for name, _ in before.groups[0]]
    assert now != before  # but lr and momentum do


def test_groups_keep_their_order_and_their_own_values():
    first, second = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": [second]}], lr=0.1)
    assert [
        dict(group)["lr"] for group in read_groups(optimizer.defaults, optimizer.param_groups).groups
    ] == [0.5, 0.1]


@pytest.mark.parametrize("value", [object(), {"a": 1}, torch.ones(3), ["a"], 1j])
def test_a_value_that_cannot_travel_is_named(value: Any):
    optimizer = made("SGD", lr=0.1)
    optimizer.param_groups[0]["momentum"] = value
    with pytest.raises(UsageError, match="hyper-parameter momentum"):
        read_groups(optimizer.defaults, optimizer.param_groups)


@pytest.mark.parametrize("name", sorted(piece_optimizer.KNOWN))
def test_choices_for_tables_are_torchs_optimizers(name: str):
    choice = getattr(ps, name)(**GIVEN.get(name, {"lr": 0.3}))
    assert choice.spec() == spec_of(made(name, **GIVEN.get(name, {"lr": 0.3})))
    assert getattr(ps, name)().spec() == spec_of(made(name))
    with pytest.raises(ValueError, match="Invalid learning rate"):
        getattr(ps, name)(lr=-1.0)
    with pytest.raises(TypeError):
        getattr(ps, name)(colour="red")
