"""`wrap` gives the bytes of plain torch, whatever parameters take part: BSP against the rank-order mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ps_worker import BucketOptions
from tests.component.models import Branches, Conv, Mlp, Tied, loss_of
from tests.component.reference import alone, assert_same, batch, check, seeded, served
from tests.component.scripts import STEPS, train
from tests.component.service import Cluster

# Several partitions on each shard, and several buckets, out of a small model.
SMALL = BucketOptions(bucket_bytes=4096, first_bucket_bytes=1024, partition_bytes=4096)
workers = pytest.mark.parametrize("num_workers", [1, 2])


def sgd(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, **kind)


def sgd_each(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    """As `sgd`: torch's fused SGD fails where one of a group has its first gradient later than another."""
    groups = [{"params": [parameter]} for parameter in model.parameters()]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01, **kind)


def adamw(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **kind)


@pytest.mark.parametrize("overlap", ["auto", True, False])
@pytest.mark.parametrize("make", [sgd, adamw])
@workers
def test_a_plain_loop(cluster: Cluster, num_workers: int, make: Any, overlap: Any):
    check(cluster, train, seeded(Mlp), make, num_workers=num_workers, overlap=overlap)


@pytest.mark.parametrize("buckets", [SMALL, BucketOptions(bucket_bytes=0, first_bucket_bytes=0)])
@workers
def test_small_buckets_and_partitions(cluster: Cluster, num_workers: int, buckets: BucketOptions):
    model = seeded(lambda: Mlp(width=301))
    check(cluster, train, model, adamw, num_workers=num_workers, buckets=buckets)


@pytest.mark.parametrize("make", [sgd, adamw])
def test_three_gradients_are_summed_in_rank_order(cluster: Cluster, make: Any):
    """Two sum alike either way; three do not."""
    check(cluster, train, seeded(Mlp), make, num_workers=3)


def test_one_shard_gives_the_same_as_two(one_shard: Cluster, cluster: Cluster):
    model = seeded(lambda: Mlp(width=301))
    got = served(one_shard, train, model, adamw, num_workers=2)
    assert_same(served(cluster, train, model, adamw, num_workers=2), got)


@workers
def test_float64(cluster: Cluster, num_workers: int):
    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            model(batch(rank, step, 4, 13).double()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp).double(), adamw, num_workers=num_workers)


@workers
def test_param_groups_with_their_own_lr_and_decay(cluster: Cluster, num_workers: int):
    def groups(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            [
                {"params": list(model.first.parameters()), "lr": 0.02},
                {"params": [model.second.weight], "weight_decay": 0.3},
                {"params": [model.second.bias], "lr": 0.005, "betas": (0.5, 0.9), "weight_decay": 0.0},
            ],
            lr=0.01,
            **kind,
        )

    check(cluster, train, seeded(Mlp), groups, num_workers=num_workers)


@workers
def test_tied_parameters(cluster: Cluster, num_workers: int):
    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            tokens = torch.arange(6).add(rank + step).remainder(11)
            model(tokens).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    got = check(cluster, script, seeded(Tied), adamw, num_workers=num_workers)
    assert got.out.weight is got.embedding.weight


@workers
def test_frozen_parameters_keep_the_starters_bytes(cluster: Cluster, num_workers: int):
    model = seeded(Mlp)
    model.first.weight.requires_grad_(False)
    got = check(cluster, train, model, adamw, num_workers=num_workers)
    assert torch.equal(got.first.weight, model.first.weight)


@pytest.mark.parametrize("overlap", ["auto", True, False])
@workers
def test_parameters_without_a_gradient_are_skipped_as_in_torch(
    cluster: Cluster, num_workers: int, overlap: Any
):
    """Conditionally used: who had a gradient differs between steps and workers; weight decay would show."""

    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            left = (step // 2 + rank * (step % 2)) % 2 == 0
            model(batch(rank, step, 4, 13), left=left).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    buckets = BucketOptions(bucket_bytes=0, first_bucket_bytes=0)
    model = seeded(Branches)
    for options in ({}, {"buckets": buckets}):
        more = {"num_workers": num_workers, "overlap": overlap, **options}
        check(cluster, script, model, adamw, **more)
        got = check(cluster, script, model, sgd, reference=sgd_each, **more)
        assert torch.equal(got.never.weight, model.never.weight)


@pytest.mark.parametrize("overlap", ["auto", False])
@pytest.mark.parametrize("through", ["optimizer", "model"])
@pytest.mark.parametrize("to_none", [True, False])
@workers
def test_both_forms_of_zero_grad(
    cluster: Cluster, num_workers: int, to_none: bool, through: str, overlap: Any
):
    """With set_to_none=False an unused parameter has zeros: momentum and decay go on."""

    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            model(batch(rank, step, 4, 13), left=step % 2 == 0).square().mean().backward()
            optimizer.step()
            (optimizer if through == "optimizer" else model).zero_grad(set_to_none=to_none)

    more = {"num_workers": num_workers, "overlap": overlap}
    check(cluster, script, seeded(Branches), sgd, reference=sgd_each, **more)


@pytest.mark.parametrize("overlap", ["auto", True, False])
@workers
def test_no_sync_accumulates(cluster: Cluster, num_workers: int, overlap: Any):
    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        served = hasattr(optimizer, "no_sync")
        for step in range(STEPS):
            for part in range(2):
                if served:
                    with optimizer.no_sync():
                        loss_of(model, rank, 3 * step + part).backward()
                else:
                    loss_of(model, rank, 3 * step + part).backward()
            loss_of(model, rank, 3 * step + 2).backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), sgd, num_workers=num_workers, overlap=overlap)


@pytest.mark.parametrize("overlap", ["auto", False])
@workers
def test_accumulation_by_hand(cluster: Cluster, num_workers: int, overlap: Any):
    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            loss_of(model, rank, 2 * step).backward()
            loss_of(model, rank, 2 * step + 1).backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), sgd, num_workers=num_workers, overlap=overlap)


@workers
def test_all_of_a_step_inside_no_sync_is_sent_by_step(cluster: Cluster, num_workers: int):
    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            if hasattr(optimizer, "no_sync"):
                with optimizer.no_sync():
                    loss_of(model, rank, step).backward()
            else:
                loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), sgd, num_workers=num_workers, overlap=True)


@pytest.mark.parametrize("overlap", ["auto", True, False])
def test_a_closure_is_evaluated_exactly_once(cluster: Cluster, overlap: Any):
    calls: list[int] = []

    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):

            def closure(step: int = step) -> torch.Tensor:
                calls.append(step)
                optimizer.zero_grad()
                loss = loss_of(model, rank, step)
                loss.backward()
                return loss

            assert optimizer.step(closure).requires_grad

    check(cluster, script, seeded(Mlp), sgd, overlap=overlap)
    assert calls == 2 * list(range(STEPS))  # once alone, once served


@pytest.mark.parametrize("overlap", ["auto", False])
@workers
def test_channels_last_weights_keep_their_layout(cluster: Cluster, num_workers: int, overlap: Any):
    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            x = batch(rank, step, 2, 3, 6, 6).to(memory_format=torch.channels_last)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    model = seeded(Conv)
    stride = model.conv.weight.stride()
    got = check(cluster, script, model, sgd, num_workers=num_workers, overlap=overlap)
    assert got.conv.weight.stride() == stride != torch.empty(5, 3, 3, 3).stride()


def test_several_optimizers_of_torch(cluster: Cluster):
    """Those with a fused kernel are compared with it, the others with the plain loop."""
    model = seeded(Mlp)
    for name, fused in [("Adagrad", True), ("RMSprop", False), ("NAdam", False), ("Rprop", False)]:

        def make(model: torch.nn.Module, name: str = name, **kind: Any) -> torch.optim.Optimizer:
            return getattr(torch.optim, name)(model.parameters(), lr=0.01, **kind)

        expected = alone(train, model, make, fused=fused)
        assert_same(served(cluster, train, model, make), expected)


def test_parameters_are_views_that_stay_where_they_are(cluster: Cluster):
    """A script's own references (an EMA, a logger) go on seeing the weights."""
    places: list[set[int]] = []

    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            places.append({parameter.data_ptr() for parameter in model.parameters()})

    served(cluster, script, seeded(Mlp), sgd)
    assert all(place == places[0] for place in places)
