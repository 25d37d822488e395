"""Gradients that come in unusual ways: activation checkpointing, several backwards, several optimizers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import ps_worker as ps
from tests.component.models import Mlp, loss_of
from tests.component.reference import assert_same, batch, check, seeded
from tests.component.service import Cluster, run_workers, together
from tests.until import LIMIT_S

EACH = ps.BucketOptions(bucket_bytes=0, first_bucket_bytes=0)  # every parameter is a bucket
STEPS = 4

reentrants = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
overlaps = pytest.mark.parametrize("overlap", [False, True, "auto"])
# torch's own notes on reentrant checkpoints and on graphs of gradients
pytestmark = pytest.mark.filterwarnings("ignore:.*use_reentrant", "ignore:None of the inputs have requires")


def adam(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **kind)


class Deep(torch.nn.Module):
    """Blocks whose activations are computed again in backward; with `twice` one block runs two times."""

    def __init__(self, *, reentrant: bool, twice: bool = False) -> None:
        super().__init__()
        self.inlet = torch.nn.Linear(13, 7)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(7, 7) for _ in range(2))
        self.out = torch.nn.Linear(7, 3)
        self._reentrant = reentrant
        self._twice = twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inlet(x)
        for block in itertools.chain(self.blocks, self.blocks[:1] if self._twice else ()):
            hidden = torch.tanh(checkpoint(block, hidden, use_reentrant=self._reentrant))
        return self.out(hidden)


def train(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(STEPS):
        loss_of(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()


@overlaps
@reentrants
def test_checkpointed_blocks(cluster: Cluster, reentrant: bool, overlap: Any):
    model = seeded(lambda: Deep(reentrant=reentrant))
    check(cluster, train, model, adam, num_workers=2, overlap=overlap, buckets=EACH)


@pytest.mark.parametrize("overlap", [False, "auto"])
@reentrants
def test_a_block_that_is_checkpointed_twice_in_one_forward(cluster: Cluster, reentrant: bool, overlap: Any):
    """A reentrant checkpoint is a backward of its own, so the block's gradients come twice."""
    model = seeded(lambda: Deep(reentrant=reentrant, twice=True))
    check(cluster, train, model, adam, num_workers=2, overlap=overlap, buckets=EACH)


def test_with_overlap_a_block_whose_gradients_come_twice_is_an_error(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(lambda: Deep(reentrant=True, twice=True))
        optimizer = worker.wrap(adam(model), model, overlap=True, buckets=EACH)
        with pytest.raises(ps.GradientChanged, match=r"'blocks\.0\.(weight|bias)'.*overlap=False"):
            train(0, model, optimizer)

    run_workers(cluster, body)


# -- several backwards in one step ---------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, "auto"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_two_backwards_through_one_graph(cluster: Cluster, num_workers: int, overlap: Any):
    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            out = model(batch(rank, step, 4, 13))
            out.square().mean().backward(retain_graph=True)
            out.abs().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), adam, num_workers=num_workers, overlap=overlap, buckets=EACH)


def test_two_backwards_with_overlap_the_first_under_no_sync(cluster: Cluster):
    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        for step in range(STEPS):
            out = model(batch(rank, step, 4, 13))
            first, second = out.square().mean(), out.abs().mean()
            if isinstance(optimizer, ps.WrappedOptimizer):
                with optimizer.no_sync():
                    first.backward(retain_graph=True)
            else:
                first.backward(retain_graph=True)
            second.backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, script, seeded(Mlp), adam, num_workers=2, overlap=True, buckets=EACH)


def test_a_graph_from_before_a_step_is_refused_by_autograd(cluster: Cluster):
    """The weights that its backward would read are others now: torch says so, and so it is here."""

    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(adam(model), model)
        loss = loss_of(model, 0, 0)
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    run_workers(cluster, body)


# -- two optimizers ------------------------------------------------------------------------------------


Pair = tuple[torch.nn.Module, torch.nn.Module]


def make_pair() -> Pair:
    return seeded(lambda: torch.nn.Linear(13, 6), 1), seeded(lambda: torch.nn.Linear(6, 1), 2)


def gan(rank: int, pair: Pair, first: torch.optim.Optimizer, second: torch.optim.Optimizer) -> None:
    """As in torch's tutorial: two backwards for the judge; the maker's leaves gradients in the judge."""
    maker, judge = pair
    for step in range(STEPS):
        first.zero_grad()
        judge(batch(rank, step, 4, 6)).sub(1).square().mean().backward()
        fake = maker(batch(rank, 100 + step, 4, 13))
        judge(fake.detach()).square().mean().backward()
        first.step()
        second.zero_grad()
        judge(fake).sub(1).square().mean().backward()
        second.step()


def replicas_of_gan(num_workers: int) -> Pair:
    """Plain torch: every replica's gradients become the mean in rank order before each step."""
    given: list[list[torch.Tensor]] = [[] for _ in range(num_workers)]
    means: list[torch.Tensor] = []
    pairs = [make_pair() for _ in range(num_workers)]

    def average() -> None:
        means[:] = [sum(rest, start=one) / num_workers for one, *rest in zip(*given, strict=True)]

    all_here = threading.Barrier(num_workers, average, LIMIT_S)

    def hook(rank: int) -> Callable[..., None]:
        def before(optimizer: torch.optim.Optimizer, *_: object) -> None:
            parameters = optimizer.param_groups[0]["params"]
            given[rank] = [parameter.grad for parameter in parameters]
            all_here.wait()
            for parameter, mean in zip(parameters, means, strict=True):
                parameter.grad = mean.clone()

        return before

    def one(rank: int) -> None:
        maker, judge = pairs[rank]
        optimizers = adam(judge, fused=True), adam(maker, fused=True)
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(hook(rank))
        gan(rank, pairs[rank], *optimizers)

    together([lambda rank=rank: one(rank) for rank in range(num_workers)])
    return pairs[0]


@pytest.mark.parametrize("overlap", [False, "auto"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_gan_is_two_tables(cluster: Cluster, num_workers: int, overlap: Any):
    pairs = [make_pair() for _ in range(num_workers)]

    def body(worker: ps.Worker) -> Pair:
        maker, judge = pair = pairs[worker.rank]
        first = worker.wrap(adam(judge), judge, overlap=overlap)
        second = worker.wrap(adam(maker), maker, overlap=overlap)
        gan(worker.rank, pair, first, second)
        worker.finish()
        return pair

    start, expected = make_pair(), replicas_of_gan(num_workers)
    for pair in run_workers(cluster, body, num_workers=num_workers):
        for before, got, want in zip(start, pair, expected, strict=True):
            assert_same(got, want)
            assert not torch.equal(got.weight, before.weight)


def test_with_overlap_the_backward_of_another_optimizer_is_an_error(cluster: Cluster):
    """The maker's backward sends the judge's gradients away: to be told before they are applied."""

    def body(worker: ps.Worker) -> None:
        maker, judge = pair = make_pair()
        first = worker.wrap(adam(judge), judge, overlap=True)
        second = worker.wrap(adam(maker), maker, overlap=True)
        with pytest.raises(ps.GradientChanged, match="overlap=False"):
            gan(worker.rank, pair, first, second)

    run_workers(cluster, body)


def test_auto_does_not_see_in_its_first_step_what_another_optimizers_backward_does(cluster: Cluster):
    """The judge has one backward a step; when the maker's comes, its first step is over and was clean."""

    def body(worker: ps.Worker) -> None:
        maker, judge = make_pair()
        first = worker.wrap(adam(judge), judge)
        second = worker.wrap(adam(maker), maker)

        def step(number: int) -> None:
            first.zero_grad()
            fake = maker(batch(0, number, 4, 13))
            judge(torch.cat([batch(1, number, 4, 6), fake.detach()])).square().mean().backward()
            first.step()
            second.zero_grad()
            judge(fake).sub(1).square().mean().backward()
            second.step()

        step(0)
        with pytest.raises(ps.GradientChanged, match="overlap=False"):
            step(1)

    run_workers(cluster, body)
