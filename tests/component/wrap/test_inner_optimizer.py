"""The optimizer that was wrapped: a second name for what `wrap` returned, or refused by name."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import ps_worker as ps
from tests.component.models import Mlp, loss_of
from tests.component.reference import alone, assert_same, check, seeded
from tests.component.scripts import STEPS, train
from tests.component.service import Cluster, run_workers
from tests.inside import exchange_of


def adam(parameters: Any, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, **kind)


def saved(what: Any) -> None:
    torch.save(what, io.BytesIO())


def inner_of(optimizer: Any) -> Any:
    return getattr(optimizer, "_inner", optimizer)


def test_a_group_that_is_added_to_the_wrapped_optimizer_is_trained(cluster: Cluster):
    def script(rank: int, model: nn.Module, optimizer: Any) -> None:
        train(rank, model, optimizer, range(2))
        inner_of(optimizer).add_param_group({"params": model.second.parameters(), "lr": 0.1})
        train(rank, model, optimizer, range(2, STEPS))

    def make(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
        return adam(model.first.parameters(), **kind)

    check(cluster, script, seeded(Mlp), make, num_workers=2)


def test_state_that_the_wrapped_optimizer_loads_and_gives_is_that_of_the_servers(cluster: Cluster):
    def make(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
        return adam(model.parameters(), **kind)

    def script(rank: int, model: nn.Module, optimizer: Any) -> None:
        train(rank, model, optimizer, range(2))
        state = copy.deepcopy(inner_of(optimizer).state_dict())
        assert len(state["state"]) == 4
        train(rank, model, optimizer, range(2, STEPS))
        state["param_groups"][0]["lr"] = 0.5
        inner_of(optimizer).load_state_dict(state)
        assert optimizer.param_groups[0]["lr"] == 0.5
        train(rank, model, optimizer, range(2))
        inner_of(optimizer).zero_grad()

    check(cluster, script, seeded(Mlp), make)


@pytest.mark.parametrize("change", ["appended", "popped", "a parameter appended"])
def test_param_groups_that_change_by_hand_are_an_error_that_names_add_param_group(
    cluster: Cluster, change: str
):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(adam([{"params": [item]} for item in model.first.parameters()]), model)
        train(0, model, optimizer)
        kept = list(optimizer.param_groups)
        if change == "appended":
            optimizer.param_groups.append({**kept[0], "params": [model.second.weight]})
        elif change == "popped":
            optimizer.param_groups.pop()
        else:
            optimizer.param_groups[0]["params"].append(model.second.weight)
        with pytest.raises(ps.UsageError, match="add_param_group"):
            train(0, model, optimizer)
        optimizer.param_groups[:] = kept
        del kept[0]["params"][1:]
        optimizer.step()

    run_workers(cluster, body)


def test_the_state_attribute_is_empty_and_state_dict_reads_the_servers(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(adam(model.parameters()), model)
        train(0, model, optimizer)
        assert optimizer.state[model.first.weight] == {}
        assert int(optimizer.state_dict()["state"][0]["step"]) == STEPS

    run_workers(cluster, body)


# -- a wrap that is refused ----------------------------------------------------------------------------


def test_an_optimizer_whose_wrap_was_refused_is_as_it_was(cluster: Cluster):
    """It trains on in plain torch, with its state, and can be wrapped after all."""
    plain = seeded(Mlp)
    expected = alone(train, seeded(Mlp), lambda model, **kind: adam(model.parameters(), **kind))

    def body(worker: ps.Worker) -> None:
        optimizer = adam(plain.parameters(), fused=True)
        train(0, plain, optimizer, range(2))
        stranger = nn.Linear(2, 2)
        with pytest.raises(ps.UsageError):
            worker.wrap(optimizer, stranger)
        plain.half_of_it = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        optimizer.add_param_group({"params": [plain.half_of_it]})
        with pytest.raises(ps.ConfigurationRefused):
            worker.wrap(optimizer, plain)
        optimizer.param_groups.pop()
        del plain.half_of_it
        train(0, plain, optimizer, range(2, 3))
        train(0, plain, worker.wrap(optimizer, plain), range(3, STEPS))
        worker.finish()

    run_workers(cluster, body)
    assert_same(plain, expected)


# -- copies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["wrapped", "inner"])
@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickle.dumps, saved])
def test_a_copy_is_refused_and_named_state_dict(cluster: Cluster, copied: Any, which: str):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        inner = adam(model.parameters())
        wrapped = worker.wrap(inner, model)
        with pytest.raises(ps.UsageError, match=r"state_dict\(\)"):
            copied(wrapped if which == "wrapped" else inner)

    run_workers(cluster, body)


def test_a_model_can_be_saved_once_an_interrupted_step_is_settled(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(adam(model.parameters()), model)
        exchange = exchange_of(optimizer)
        wait = exchange.wait_pulled

        def interrupted(*_: Any) -> None:
            exchange.wait_pulled = wait
            raise KeyboardInterrupt

        exchange.wait_pulled = interrupted
        loss_of(model, 0, 0).backward()
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        with pytest.raises(ps.UsageError, match="synchronize"):
            torch.save(model, io.BytesIO())
        worker.synchronize()
        torch.save(model, io.BytesIO())
        assert_same(copy.deepcopy(model), model)

    run_workers(cluster, body)


# -- checkpoints of an older torch ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "ASGD", "Rprop"]
)
def test_a_checkpoint_of_an_older_torch_loads_as_in_torch(cluster: Cluster, name: str):
    """What torch has added to the param-groups since gets torch's own default."""
    execution = {"foreach", "capturable", "differentiable", "fused"}
    newer = execution | {"decoupled_weight_decay", "maximize", "centered"}

    def make(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
        cls = getattr(torch.optim, name)
        kind = kind if "fused" in cls([torch.zeros(1)]).defaults else {}
        return cls(model.parameters(), lr=0.01, **kind)

    def script(rank: int, model: nn.Module, optimizer: Any) -> None:
        train(rank, model, optimizer, range(2))
        state = copy.deepcopy(optimizer.state_dict())
        for group in state["param_groups"]:
            fused = group.get("fused")
            for key in newer & group.keys():
                del group[key]
            if fused:
                group["fused"] = fused  # the reference has the kernels of the servers
        optimizer.load_state_dict(state)
        train(rank, model, optimizer, range(2, STEPS))

    check(cluster, script, seeded(Mlp), make)
