"""More of what scripts do to gradients, and hooks of theirs; `test_overlap` has the law and its checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import ps_worker as ps
from tests.component.models import Mlp, loss_of
from tests.component.reference import batch, check, seeded
from tests.component.scripts import STEPS, sgd
from tests.component.service import Cluster, run_workers

modes = pytest.mark.parametrize("overlap", ["auto", False])


@modes
@pytest.mark.parametrize("num_workers", [1, 2])
def test_gradient_noise(cluster: Cluster, num_workers: int, overlap: Any):
    """Each worker adds its own, from its own generator."""

    def script(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        noise = torch.Generator().manual_seed(rank)
        for step in range(STEPS):
            loss_of(model, rank, step).backward()
            for parameter in model.parameters():
                parameter.grad.add_(torch.randn(parameter.shape, generator=noise), alpha=0.1)
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), sgd, num_workers=num_workers, overlap=overlap)


def test_unscaling_after_overlap_began_is_an_error(cluster: Cluster):
    """`unscale_` on a CPU bumps no version counter."""

    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model, overlap=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(loss_of(model, 0, 0)).backward()
        scaler.unscale_(optimizer)
        with pytest.raises(ps.GradientChanged, match=r"overlap=False"):
            scaler.step(optimizer)

    run_workers(cluster, body)


class Many(nn.Module):
    """More parameters than the bytes of which are compared in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(13, 13) for _ in range(60))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(layer(x) for layer in self.layers)


def test_one_gradient_of_many_that_is_written_past_autograd_is_found_within_some_steps(cluster: Cluster):
    """Begun in mid-run, so that the first step did not show it: a sample of the gradients goes round."""

    def body(worker: ps.Worker) -> int:
        model = seeded(Many)
        optimizer = worker.wrap(sgd(model), model, overlap=True)
        parameters = list(model.parameters())

        def train() -> None:
            for step in range(len(parameters)):
                loss_of(model, 0, step).backward()
                parameters[77].grad.data.mul_(0.5)
                optimizer.step()
                optimizer.zero_grad()

        with pytest.raises(ps.GradientChanged, match=r"'layers\.38\.bias'"):
            train()
        return optimizer.step_number

    (steps,) = run_workers(cluster, body)
    assert steps < 16  # of 120 parameters, 8 or more in each


# -- gradients that come in another way -----------------------------------------------------------------


def by_hand(rank: int, step: int, model: nn.Module) -> None:
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss_of(model, rank, step), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def of_some(rank: int, step: int, model: Any) -> None:
    """In every second step the first layer has none."""
    loss_of(model, rank, step).backward(inputs=list(model.second.parameters()) if step % 2 else None)


def functional(rank: int, step: int, model: nn.Module) -> None:
    x = batch(rank, step, 4, 13)
    torch.func.functional_call(model, dict(model.named_parameters()), (x,)).square().mean().backward()


@pytest.mark.parametrize("overlap", ["auto", True, False])
@pytest.mark.parametrize("differentiate", [by_hand, of_some, functional], ids=lambda one: one.__name__)
def test_gradients_without_a_plain_backward(cluster: Cluster, differentiate: Any, overlap: Any):
    """`autograd.grad`, which fires no hook; `backward(inputs=...)`; `torch.func.functional_call`."""

    def script(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            differentiate(rank, step, model)
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), sgd, num_workers=2, overlap=overlap)


# -- hooks of scripts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["auto", True, False])
def test_hooks_of_model_tensors_and_optimizer_fire_once(cluster: Cluster, overlap: Any):
    """In the order of plain torch, and what a gradient hook returns is what is trained on."""
    fired: list[list[str]] = []

    def script(rank: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        mine: list[str] = []
        fired.append(mine)

        def note(name: str) -> Any:
            return lambda *_: mine.append(name)

        model.first.weight.register_hook(lambda grad: (mine.append("gradient"), grad * 0.5)[1])
        model.first.weight.register_post_accumulate_grad_hook(note("accumulated"))
        model.first.register_forward_pre_hook(note("forward pre"))
        model.first.register_forward_hook(note("forward"))
        model.second.register_full_backward_pre_hook(note("backward pre"))
        model.second.register_full_backward_hook(note("backward"))
        optimizer.register_step_pre_hook(note("step pre"))
        optimizer.register_step_post_hook(note("step post"))
        for step in range(STEPS):
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), sgd, overlap=overlap)
    plain, got = fired
    assert got == plain
    assert len(got) == 8 * STEPS


@pytest.mark.parametrize("where", ["before wrap", "after wrap"])
def test_hooks_of_a_state_dict_fire_once(cluster: Cluster, where: str):
    fired: list[str] = []

    def register(optimizer: torch.optim.Optimizer) -> None:
        optimizer.register_state_dict_pre_hook(lambda *_: fired.append("save pre"))
        optimizer.register_state_dict_post_hook(lambda *_: fired.append("save post"))
        optimizer.register_load_state_dict_pre_hook(lambda *_: fired.append("load pre"))
        optimizer.register_load_state_dict_post_hook(lambda *_: fired.append("load post"))

    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        inner = sgd(model)
        if where == "before wrap":
            register(inner)
        optimizer = worker.wrap(inner, model)
        if where == "after wrap":
            register(optimizer)
        loss_of(model, 0, 0).backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())

    run_workers(cluster, body)
    assert fired == ["save pre", "save post", "load pre", "load post"]


def test_hooks_of_all_optimizers_fire_once_a_step(cluster: Cluster):
    """And for those of servers in the same process, as where a script runs alone."""
    fired: list[tuple[str, torch.optim.Optimizer]] = []
    handles = [
        register_optimizer_step_pre_hook(lambda one, *_: fired.append(("pre", one))),
        register_optimizer_step_post_hook(lambda one, *_: fired.append(("post", one))),
    ]

    def body(worker: ps.Worker) -> torch.optim.Optimizer:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model)
        for step in range(2):
            loss_of(model, 0, step).backward()
            optimizer.step()
        return optimizer

    try:
        (mine,) = run_workers(cluster, body)
    finally:
        for handle in handles:
            handle.remove()
    assert [when for when, one in fired if one is mine] == ["pre", "post"] * 2
    assert {type(one) for _, one in fired if one is not mine} == {torch.optim.SGD}


def test_no_gradient_flows_through_a_step_of_a_differentiable_optimizer(cluster: Cluster):
    """The servers make the update: the weights are those of one that is not differentiable."""

    def make(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, differentiable=not kind, **kind)

    def script(rank: int, model: nn.Module, optimizer: Any) -> None:
        for step in range(3):
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert all(parameter.grad_fn is None for parameter in model.parameters())

    check(cluster, script, seeded(Mlp), make)


@pytest.mark.parametrize("overlap", ["auto", True])
def test_a_hook_that_clears_gradients_in_backward_is_refused_by_name(cluster: Cluster, overlap: Any):
    """As one that steps an optimizer per parameter inside backward does."""

    def clear(parameter: torch.Tensor) -> None:
        parameter.grad = None

    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        handle = model.first.weight.register_post_accumulate_grad_hook(clear)
        worker.wrap(sgd(model), model, overlap=overlap)
        with pytest.raises(ps.UsageError, match=r"a hook cleared the gradient of 'first.weight'"):
            loss_of(model, 0, 0).backward()
        handle.remove()

    run_workers(cluster, body)
