"""What torch's optimizers promise beside `step`: state, param-groups that grow, hooks, and clear refusals."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import ps_worker as ps
from tests.component.models import Branches, Mlp, loss_of
from tests.component.reference import alone, assert_same, batch, check, seeded, served
from tests.component.scripts import STEPS, sgd, train
from tests.component.service import Cluster, run_workers


def adam(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True, **kind)


# -- state ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_run_goes_on_in_plain_torch(cluster: Cluster, num_workers: int):
    expected = alone(train, seeded(Mlp), adam, num_workers=num_workers)
    model = seeded(Mlp)
    saved: list[Any] = []

    def first_half(rank: int, mine: nn.Module, optimizer: Any) -> None:
        train(rank, mine, optimizer, range(2))
        state = optimizer.state_dict()
        assert not optimizer.state
        if rank == 0:
            saved.append(state)

    half = served(cluster, first_half, model, adam, num_workers=num_workers)

    def second_half(rank: int, mine: nn.Module, optimizer: Any) -> None:
        state = copy.deepcopy(saved[0])
        for group in state["param_groups"]:
            group["fused"] = True  # servers run fused kernels, whatever the script's optimizer was made with
        optimizer.load_state_dict(state)
        train(rank, mine, optimizer, range(2, STEPS))

    assert_same(alone(second_half, half, adam, num_workers=num_workers), expected)


@pytest.mark.parametrize("when", ["before wrap", "after wrap"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_plain_run_goes_on_here(cluster: Cluster, num_workers: int, when: str):
    expected = alone(train, seeded(Mlp), adam, num_workers=num_workers)
    saved: list[Any] = []

    def first_half(rank: int, mine: nn.Module, optimizer: Any) -> None:
        train(rank, mine, optimizer, range(2))
        if rank == 0:
            saved.append(copy.deepcopy(optimizer.state_dict()))

    half = alone(first_half, seeded(Mlp), adam, num_workers=num_workers)

    def make(mine: nn.Module) -> torch.optim.Optimizer:
        optimizer = adam(mine)
        if when == "before wrap":
            optimizer.load_state_dict(saved[0])
        return optimizer

    def second_half(rank: int, mine: nn.Module, optimizer: Any) -> None:
        if when == "after wrap":
            optimizer.load_state_dict(saved[0])
        train(rank, mine, optimizer, range(2, STEPS))

    assert_same(served(cluster, second_half, half, make, num_workers=num_workers), expected)


def test_state_has_torchs_own_form(cluster: Cluster):
    got: list[Any] = []

    def script(rank: int, mine: nn.Module, optimizer: Any) -> None:
        train(rank, mine, optimizer)
        got.append(optimizer.state_dict())

    check(cluster, script, seeded(Mlp), adam)
    plain, ours = got
    assert ours["state"].keys() == plain["state"].keys()
    for index, entry in plain["state"].items():
        assert list(ours["state"][index]) == list(entry)
        for name, value in entry.items():
            mine = ours["state"][index][name]
            assert torch.equal(mine, value)
            assert mine.dtype == value.dtype
    assert [group["params"] for group in ours["param_groups"]] == [
        group["params"] for group in plain["param_groups"]
    ]


# -- param-groups --------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["auto", True, False])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_group_added_in_mid_run_is_trained_as_in_torch(cluster: Cluster, num_workers: int, overlap: Any):
    def make(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.first.parameters(), lr=0.01, **kind)

    def script(rank: int, model: nn.Module, optimizer: Any) -> None:
        for step in range(6):
            if step == 3:
                optimizer.add_param_group({"params": list(model.second.parameters()), "lr": 0.05})
                optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 4:
                optimizer.param_groups[1]["lr"] = 0.02

    check(cluster, script, seeded(Mlp), make, num_workers=num_workers, overlap=overlap)


def test_a_group_that_is_refused_is_not_there(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model)
        with pytest.raises(ps.UsageError, match="1 parameters that the model does not have"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
        assert len(optimizer.param_groups) == 1
        train(0, model, optimizer)

    run_workers(cluster, body)


def test_parameters_unfrozen_in_mid_run_are_trained_as_in_torch(cluster: Cluster):
    def script(rank: int, model: nn.Module, optimizer: Any) -> None:
        model.second.requires_grad_(False)
        for step in range(6):
            if step == 3:
                model.second.requires_grad_(True)
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), adam, num_workers=2, overlap=True)


# -- hooks ---------------------------------------------------------------------------------------------


def test_hooks_of_the_optimizer_fire_once_a_step_wherever_they_were_registered(cluster: Cluster):
    fired: list[str] = []

    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        inner = sgd(model)
        inner.register_step_pre_hook(lambda *_: fired.append("pre"))
        optimizer = worker.wrap(inner, model)
        optimizer.register_step_post_hook(lambda *_: fired.append("post"))
        model.register_forward_hook(lambda *_: fired.append("forward"))
        train(0, model, optimizer, range(2))

    run_workers(cluster, body)
    assert fired == ["forward", "pre", "post"] * 2


def test_a_scheduler_made_before_wrap_still_schedules(cluster: Cluster):
    def body(worker: ps.Worker) -> list[float]:
        model = seeded(Mlp)
        inner = sgd(model)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
        optimizer = worker.wrap(inner, model)
        rates = []
        for step in range(3):
            train(0, model, optimizer, range(step, step + 1))
            rates.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
        return rates

    assert run_workers(cluster, body) == [[0.1, 0.05, 0.025]]


# -- refusals ------------------------------------------------------------------------------------------


def writes_in_place(model: nn.Module) -> None:
    with torch.no_grad():
        model.second.bias.add_(1.0)


def writes_past_autograd(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(0.5)


def loads(model: nn.Module) -> None:
    model.load_state_dict(seeded(Mlp, seed=3).state_dict())


def replaces(model: nn.Module) -> None:
    model.second.bias.data = torch.ones(5)


@pytest.mark.parametrize(
    "write", [writes_in_place, writes_past_autograd, loads, replaces], ids=lambda write: write.__name__
)
def test_weights_that_a_script_writes_are_an_error(cluster: Cluster, write: Any):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model)
        train(0, model, optimizer, range(2))
        write(model)
        loss_of(model, 0, 2).backward()
        with pytest.raises(ps.WeightsChanged, match="load weights before wrap"):
            optimizer.step()

    run_workers(cluster, body)


def test_a_parameter_that_moves_with_its_values_is_followed(cluster: Cluster):
    """As `model.to(device)` moves it; a CPU has no other device, so other memory stands for it."""

    def script(rank: int, model: nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            if step == 2:
                for parameter in model.parameters():
                    parameter.data = parameter.data.clone()
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), sgd)


def test_a_parameter_whose_shape_changed_is_named(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        worker.wrap(sgd(model), model)
        model.second.bias.data = torch.zeros(7)
        model.second.weight.data = torch.zeros(7, 37)
        with pytest.raises(ps.ConfigurationRefused, match=r"'second.bias'.* shape \(7,\).*had \(5,\)"):
            loss_of(model, 0, 0).backward()

    run_workers(cluster, body)


def test_the_optimizer_that_was_wrapped_no_longer_steps(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        inner = sgd(model)
        worker.wrap(inner, model)
        with pytest.raises(ps.UsageError, match=r"what worker.wrap returned"):
            inner.step()

    run_workers(cluster, body)


def test_a_parameter_has_one_table(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        worker.wrap(sgd(model), model)
        with pytest.raises(ps.UsageError, match=r"'first.weight' is in table 0 already"):
            worker.wrap(sgd(model), model)
        with pytest.raises(ps.UsageError, match="'w' is in table 0 already"):
            worker.table({"w": model.first.weight}, optimizer=ps.SGD())

    run_workers(cluster, body)


def test_no_step_comes_after_leave_or_finish(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model)
        table = worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD())
        train(0, model, optimizer, range(1))
        worker.finish()
        with pytest.raises(ps.UsageError, match="no step comes after finish"):
            optimizer.step()
        worker.leave()
        with pytest.raises(ps.UsageError, match="has left job"):
            optimizer.step()
        with pytest.raises(ps.UsageError, match="has left job"):
            table.push({"w": torch.ones(3)})
        with pytest.raises(ps.UsageError, match="has left job"):
            table.pull()

    run_workers(cluster, body)


def test_a_model_that_something_else_replicates_is_refused(cluster: Cluster):
    class DataParallel(nn.Module):
        """Stands for torch's, which want a process group or a GPU."""

        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    def body(worker: ps.Worker) -> None:
        model = DataParallel(seeded(Mlp))
        with pytest.raises(ps.ConfigurationRefused, match=r"wrapped by DataParallel.*bare module"):
            worker.wrap(sgd(model), model)

    run_workers(cluster, body)


def test_parameters_outside_the_optimizer_stay_as_they_are(cluster: Cluster):
    def make(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.trunk.parameters(), lr=0.1, **kind)

    def script(rank: int, model: nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            model(batch(rank, step, 4, 13), left=True).square().mean().backward()
            optimizer.step()
            model.zero_grad()

    check(cluster, script, seeded(Branches), make)


def test_own_clipping_of_ssp_and_asp_is_that_of_torch(cluster: Cluster):
    def script(rank: int, model: nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    def clipping(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
        optimizer = sgd(model, **kind)
        optimizer.register_step_pre_hook(
            lambda *_: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-2) and None
        )
        return optimizer

    expected = alone(script, seeded(Mlp), clipping)
    got = served(cluster, script, seeded(Mlp), sgd, consistency="asp", clip_grad_norm=1e-2)
    for one, other in zip(got.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
