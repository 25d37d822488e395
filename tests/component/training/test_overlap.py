"""Overlap with backward: when it begins, what it may not miss, and that it is real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ps_worker as ps
from tests.component.models import Branches, Mlp, loss_of
from tests.component.reference import batch, check, seeded
from tests.component.service import Cluster, run_workers
from tests.inside import exchange_of

EACH = ps.BucketOptions(bucket_bytes=0, first_bucket_bytes=0)  # every parameter is a bucket
STEPS = 4


def sgd(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **kind)


def wrapped_in(
    cluster: Cluster, body: Callable[[torch.nn.Module, Any], Any], **options: Any
) -> tuple[torch.nn.Module, Any]:
    """`body(model, optimizer)` in a job of one worker, with every parameter a bucket."""
    model = seeded(Mlp)

    def run(worker: ps.Worker) -> Any:
        return body(model, worker.wrap(sgd(model), model, **{"buckets": EACH} | options))

    (result,) = run_workers(cluster, run)
    return model, result


# -- what scripts do to gradients between backward and step --------------------------------------------


def clip_norm(model: torch.nn.Module) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def clip_value(model: torch.nn.Module) -> None:
    torch.nn.utils.clip_grad_value_(model.parameters(), 1e-4)


def clamp_data(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.data.clamp_(-1e-4, 1e-4)


def numpy_view(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        view = parameter.grad.numpy()
        view *= 0.5


def replace(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = parameter.grad * 0.5


def forget(model: torch.nn.Module) -> None:
    model.first.weight.grad = None


TOUCHES = [clip_norm, clip_value, clamp_data, numpy_view, replace, forget]
touches = pytest.mark.parametrize("touch", TOUCHES, ids=lambda touch: touch.__name__)


def test_auto_begins_after_a_clean_first_step(cluster: Cluster):
    def body(model: torch.nn.Module, optimizer: Any) -> list[bool]:
        overlaps = []
        for step in range(3):
            overlaps.append(optimizer.overlaps)
            loss_of(model, 0, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        return overlaps

    assert wrapped_in(cluster, body)[1] == [False, True, True]


def test_auto_waits_for_the_first_step_with_a_gradient(cluster: Cluster):
    def body(model: torch.nn.Module, optimizer: Any) -> list[bool]:
        overlaps = []
        for step in range(3):
            if step:
                loss_of(model, 0, step).backward()
            optimizer.step()
            overlaps.append(optimizer.overlaps)
        return overlaps

    assert wrapped_in(cluster, body)[1] == [False, True, True]


@touches
def test_auto_stays_off_where_gradients_are_touched(cluster: Cluster, touch: Any):
    """And all is as in torch."""
    overlaps: list[bool] = []

    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            loss_of(model, rank, step).backward()
            touch(model)
            optimizer.step()
            optimizer.zero_grad()
        overlaps.append(getattr(optimizer, "overlaps", None))

    check(cluster, script, seeded(Mlp), sgd, buckets=EACH)
    assert overlaps == [None, False]


def test_auto_stays_off_where_gradients_accumulate_by_hand(cluster: Cluster):
    def body(model: torch.nn.Module, optimizer: Any) -> bool:
        loss_of(model, 0, 0).backward()
        loss_of(model, 0, 1).backward()
        optimizer.step()
        return optimizer.overlaps

    assert wrapped_in(cluster, body)[1] is False


@touches
@pytest.mark.parametrize("num_workers", [1, 2])
def test_without_overlap_everything_is_as_in_torch(cluster: Cluster, touch: Any, num_workers: int):
    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            loss_of(model, rank, step).backward()
            touch(model)
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), sgd, num_workers=num_workers, overlap=False)


# -- with overlap, what has left is final --------------------------------------------------------------


def refused(cluster: Cluster, act: Callable[[torch.nn.Module, Any], None], text: str) -> None:
    """Two steps in order; in the third `act` comes between backward and step."""

    def body(model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(2):
            loss_of(model, 0, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        loss_of(model, 0, 2).backward()

        def go_on() -> None:
            act(model, optimizer)
            optimizer.step()

        with pytest.raises(ps.GradientChanged, match=text) as caught:
            go_on()
        assert "overlap=False" in caught.value.message

    for overlap in (True, "auto"):
        wrapped_in(cluster, body, overlap=overlap)


@touches
def test_a_touched_gradient_is_an_error_that_names_the_remedy(cluster: Cluster, touch: Any):
    refused(cluster, lambda model, _: touch(model), "the gradient of 'first.weight'|the gradient of 'second")


def test_a_second_backward_is_an_error(cluster: Cluster):
    refused(cluster, lambda model, _: loss_of(model, 0, 3).backward(), "a second backward")


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_after_buckets_have_left_is_an_error(cluster: Cluster, to_none: bool):
    refused(cluster, lambda _, optimizer: optimizer.zero_grad(set_to_none=to_none), "zero_grad")
    refused(cluster, lambda model, _: model.zero_grad(set_to_none=to_none), "the gradient of")


def test_param_groups_that_change_after_a_bucket_has_left_are_an_error(cluster: Cluster):
    def act(_: torch.nn.Module, optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = 0.5

    refused(cluster, act, "param_groups changed")


@pytest.mark.parametrize("options", [{}, {"buckets": EACH}], ids=["one bucket", "each"])
def test_a_parameter_unfrozen_in_mid_run_counts_from_then_on(cluster: Cluster, options: dict[str, Any]):
    """Its bucket may not leave without it."""

    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            if step == 2:
                model.first.weight.requires_grad_(True)
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    model = seeded(Mlp)
    model.first.weight.requires_grad_(False)
    check(cluster, script, model, sgd, overlap=True, **options)


def test_a_parameter_frozen_in_mid_run_keeps_its_last_gradient(cluster: Cluster):
    """As in torch, where zeros are a gradient: its momentum and decay go on."""

    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            if step == 2:
                model.second.bias.requires_grad_(False)
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    def momentum(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, **kind)

    check(cluster, script, seeded(Mlp), momentum, overlap=True)


def test_a_parameter_that_one_worker_freezes_counts_as_zeros_there(cluster: Cluster):
    """Not as the gradient of the step before, which still lies in the bucket."""

    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            if step == 2 and rank == 0:
                model.second.bias.requires_grad_(False)
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), sgd, num_workers=2, overlap=True)


@pytest.mark.parametrize("touch", TOUCHES[:-1], ids=lambda touch: touch.__name__)
def test_a_bucket_that_has_not_left_takes_what_is_there_at_step(cluster: Cluster, touch: Any):
    """One bucket with a parameter that is not used: nothing leaves during backward, so nothing is lost."""

    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            model(batch(rank, step, 4, 13), left=True).square().mean().backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    touch_one(touch, parameter)
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Branches), sgd, overlap=True)


def touch_one(touch: Any, parameter: torch.nn.Parameter) -> None:
    """`touch` for a model of one parameter."""
    model = torch.nn.Module()
    model.first = torch.nn.Module()
    model.first.weight = parameter
    touch(model)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_gradients_that_have_a_graph_of_their_own(cluster: Cluster):
    """`backward(create_graph=True)`: p.grad requires grad."""

    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            loss_of(model, rank, step).backward(create_graph=True)
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), sgd, overlap=True)


# -- overlap is real -----------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [True, False])
def test_buckets_leave_while_backward_is_running(cluster: Cluster, overlap: bool):
    """Seen from a hook of the first layer, which comes last: the second layer has left."""
    seen: list[int] = []

    def body(model: torch.nn.Module, optimizer: Any) -> int:
        exchange = exchange_of(optimizer)
        model.first.weight.register_hook(lambda _: seen.append(exchange.bytes_pushed))
        loss_of(model, 0, 0).backward()
        at_the_end = exchange.bytes_pushed
        optimizer.step()
        assert (at_the_end == exchange.bytes_pushed) is overlap
        return exchange.bytes_pushed

    _, total = wrapped_in(cluster, body, overlap=overlap)
    assert (0 < seen[0] < total) if overlap else seen == [0]


def test_under_no_sync_nothing_leaves(cluster: Cluster):
    def body(model: torch.nn.Module, optimizer: Any) -> None:
        with optimizer.no_sync():
            loss_of(model, 0, 0).backward()
        assert exchange_of(optimizer).bytes_pushed == 0
        loss_of(model, 0, 1).backward()
        assert exchange_of(optimizer).bytes_pushed > 0
        optimizer.step()

    wrapped_in(cluster, body, overlap=True)


@pytest.mark.parametrize("overlap", [False, True, "auto"])
def test_sparse_gradients_are_refused_by_name(cluster: Cluster, overlap: Any):
    def body(worker: ps.Worker) -> None:
        model = torch.nn.Sequential(torch.nn.Embedding(5, 3, sparse=True), torch.nn.Linear(3, 1))
        optimizer = worker.wrap(sgd(model), model, overlap=overlap)

        def one_step() -> None:
            model(torch.tensor([1, 2])).sum().backward()
            optimizer.step()

        with pytest.raises(ps.UsageError, match=r"'0\.weight' is sparse"):
            one_step()

    run_workers(cluster, body)


class ManySmall(torch.nn.Module):
    """A thousand scalars: their hooks would take longer than their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.scalars = torch.nn.ParameterList(torch.randn(()) for _ in range(1000))

    def forward(self, factors: torch.Tensor) -> torch.Tensor:
        return (torch.stack(tuple(self.scalars)) * factors).square()


def test_many_small_parameters_leave_in_step_so_even_a_clipped_one_is_exact(cluster: Cluster):
    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            optimizer.zero_grad()
            model(batch(rank, step, 1000)).sum().backward()
            clip_norm(model)
            optimizer.step()
        assert not getattr(optimizer, "overlaps", False)

    check(cluster, script, seeded(ManySmall), sgd, num_workers=2)
