"""Whatever changes in `param_groups` reaches the servers with the push that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

import ps_worker as ps
from tests.component.models import Mlp, loss_of
from tests.component.reference import check, seeded
from tests.component.service import Cluster, run_workers

STEPS = 6


def chained(optimizer: torch.optim.Optimizer) -> Any:
    parts = [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.ChainedScheduler(parts, optimizer)


def sequential(optimizer: torch.optim.Optimizer) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2), lr_scheduler.StepLR(optimizer, 1, 0.5)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
    "MultiplicativeLR": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.9),
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.3),
    "MultiStepLR": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, milestones=[1, 4]),
    "ConstantLR": lambda optimizer: lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=3),
    "LinearLR": lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.2, total_iters=4),
    "ExponentialLR": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.8),
    "SequentialLR": sequential,
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
    "ChainedScheduler": chained,
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5),
    "CyclicLR": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2),
    "CosineAnnealingWarmRestarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS + 1),
    "PolynomialLR": lambda optimizer: lr_scheduler.PolynomialLR(optimizer, total_iters=STEPS, power=2.0),
    "SWALR": lambda optimizer: SWALR(optimizer, swa_lr=0.005, anneal_epochs=3),
}


def sgd(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    groups = [{"params": list(model.first.parameters())}, {"params": list(model.second.parameters())}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, **kind)


def adamw(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **kind)


def test_no_scheduler_of_torch_is_left_out():
    assert {*SCHEDULERS, "LRScheduler"} == {*lr_scheduler.__all__, "SWALR"}


@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_of_torch(cluster: Cluster, name: str, make: Any):
    """All that it sets arrives: rates, and momenta or betas where it cycles them."""
    rates: set[tuple[Any, ...]] = set()

    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        scheduler = SCHEDULERS[name](optimizer)
        for step in range(STEPS):
            rates.add(tuple(group["lr"] for group in optimizer.param_groups))
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step(1.0) if name == "ReduceLROnPlateau" else scheduler.step()

    check(cluster, script, seeded(Mlp), make, num_workers=2)
    assert len(rates) > 1


def test_one_cycle_changes_betas_and_they_arrive(cluster: Cluster):
    seen: set[tuple[float, ...]] = set()

    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        scheduler = SCHEDULERS["OneCycleLR"](optimizer)
        for step in range(STEPS):
            seen.add(tuple(optimizer.param_groups[0]["betas"]))
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()

    check(cluster, script, seeded(Mlp), adamw)
    assert len(seen) > 2


def test_values_set_by_hand_before_backward(cluster: Cluster):
    """The lr and weight decay of one group, in mid-run, as a script with a manual warm-up does."""

    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            optimizer.param_groups[1]["lr"] = 0.01 * (step + 1)
            optimizer.param_groups[0]["weight_decay"] = 0.1 * (step % 2)
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), sgd)


@pytest.mark.parametrize("overlap", ["auto", False])
def test_values_set_by_hand_between_backward_and_step(cluster: Cluster, overlap: Any):
    """With "auto" such a script never overlaps: it shows in its first step."""

    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            loss_of(model, rank, step).backward()
            optimizer.param_groups[1]["lr"] = 0.01 * (step + 1)
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), sgd, overlap=overlap)


@pytest.mark.parametrize(("name", "hyper"), [("SGD", {"momentum": 0.9}), ("Adam", {"amsgrad": True})])
def test_what_needs_more_state_cannot_be_switched_on_in_mid_run(
    cluster: Cluster, name: str, hyper: dict[str, Any]
):
    """The servers have reserved the memory of the state that the optimizer had at the start."""

    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        inner = getattr(torch.optim, name)(model.parameters(), lr=0.1)
        optimizer = worker.wrap(inner, model)
        optimizer.param_groups[0].update(hyper)
        loss_of(model, 0, 0).backward()
        with pytest.raises(ps.PsError, match="needs more optimizer state than the table was made with"):
            optimizer.step()

    run_workers(cluster, body)


def test_a_tensor_as_learning_rate(cluster: Cluster):
    def make(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.015625), **kind)

    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        scheduler = lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        for step in range(STEPS):
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()

    check(cluster, script, seeded(Mlp), make)


def test_step_hooks_of_torch_fire_once_a_step(cluster: Cluster):
    fired: list[str] = []

    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if hasattr(optimizer, "no_sync"):
            optimizer.register_step_pre_hook(lambda *_: fired.append("before"))
            optimizer.register_step_post_hook(lambda *_: fired.append("after"))
        for step in range(3):
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), adamw)
    assert fired == ["before", "after"] * 3
