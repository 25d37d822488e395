"""Buffers that a script puts in the place of others after wrap: the same on all workers after finish()."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ps_worker as ps
from tests.component.models import Mlp, Normed, loss_of
from tests.component.readers import reader_of
from tests.component.reference import alone, batch, seeded
from tests.component.scripts import train
from tests.component.service import Cluster, fresh_name, run_workers
from tests.until import LIMIT_S

STEPS = 3


class Assigned(Mlp):
    """Its forward makes its buffer anew."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(13))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return super().forward(x)


def sgd(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **kind)


def finished(cluster: Cluster, model: nn.Module, change: Callable[[int, Any], None]) -> list[Any]:
    """Two workers that train, `change` their model, and finish; their models."""
    models = [copy.deepcopy(model) for _ in range(2)]

    def body(worker: ps.Worker) -> None:
        mine = models[worker.rank]
        train(worker.rank, mine, worker.wrap(sgd(mine), mine))
        change(worker.rank, mine)
        worker.finish()

    run_workers(cluster, body, num_workers=2)
    return models


def test_a_buffer_that_forward_assigns_is_that_of_one_worker_after_finish(cluster: Cluster):
    expected: Any = alone(train, seeded(Assigned), sgd, num_workers=2)
    first, second = finished(cluster, seeded(Assigned), lambda *_: None)
    assert torch.equal(first.mean, expected.mean)
    assert torch.equal(second.mean, expected.mean)


def test_batch_norm_of_a_model_that_moved_after_wrap_is_the_same_after_finish(cluster: Cluster):
    """`model.to("cuda")` makes buffers anew; a CPU has no other device, so other memory stands for it."""

    def script(rank: int, model: Any, optimizer: Any) -> None:
        model._apply(torch.clone)
        train(rank, model, optimizer)

    expected: Any = alone(train, seeded(Normed), sgd, num_workers=2)
    models = [seeded(Normed) for _ in range(2)]

    def body(worker: ps.Worker) -> None:
        mine = models[worker.rank]
        script(worker.rank, mine, worker.wrap(sgd(mine), mine))
        worker.finish()

    run_workers(cluster, body, num_workers=2)
    for mine in models:
        for one, other in zip(mine.buffers(), expected.buffers(), strict=True):
            assert torch.equal(one, other)


def test_a_reader_gets_the_buffer_that_forward_assigned_last(cluster: Cluster):
    job, read = fresh_name(), []

    def reads() -> None:
        with reader_of(cluster, job) as reader:
            model = Assigned()
            read.append((reader.read(model), model.mean))

    def body(worker: ps.Worker) -> None:
        mine: Any = seeded(Assigned)
        optimizer = worker.wrap(sgd(mine), mine)
        thread = threading.Thread(target=reads, daemon=True)
        means = [mine.mean]
        thread.start()
        while not read:
            loss_of(mine, 0, len(means)).backward()
            means.append(mine.mean)
            optimizer.step()
            optimizer.zero_grad()
        thread.join(LIMIT_S)
        cut, mean = read[0]
        assert cut.buffers == "live"
        assert cut.buffers_step > 0
        assert torch.equal(mean, means[cut.buffers_step])

    run_workers(cluster, body, job=job)


def removes(_rank: int, model: Any) -> None:
    del model.mean


def grows_on_one(rank: int, model: Any) -> None:
    model.mean = torch.full((13 + rank,), float(rank))


def changes_dtype(_rank: int, model: Any) -> None:
    model.mean = model.mean.double()


def adds(rank: int, model: Any) -> None:
    model.register_buffer("more", torch.full((1,), float(rank)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (removes, "'mean' is no longer in the model: the job does not keep it"),
        (
            grows_on_one,
            "'mean' has shape (14,) here; in the job it is of shape (13,): it stays as it is here",
        ),
        (changes_dtype, "'mean' was float32 [13] at wrap and is float64 [13] now"),
        (adds, "buffer 'more' is new since wrap: each worker keeps its own"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_buffer_that_is_not_as_it_was_at_wrap_is_said_once_and_finish_goes_on(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, change: Any, said: str
):
    with caplog.at_level(logging.INFO, "ps_worker"):
        models = finished(cluster, seeded(Assigned), change)
    lines = [record.message for record in caplog.records if said in record.message]
    assert lines
    assert len(lines) == len(set(lines))
    x = batch(9, 9, 6, 13)
    weights = [nn.functional.linear(x, model.first.weight) for model in models]
    assert torch.equal(*weights)


def test_one_buffer_under_two_names_is_the_same_on_all_workers_when_it_became_two(cluster: Cluster):
    class Shared(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("one", torch.zeros(3))
            self.register_buffer("other", self.one)

    def moves(rank: int, model: Any) -> None:
        model._apply(torch.clone)
        model.one.fill_(rank + 1.0)
        model.other.fill_(rank + 5.0)

    for model in finished(cluster, seeded(Shared), moves):
        assert model.one is not model.other
        assert torch.equal(model.one, torch.full((3,), 1.0))
        assert torch.equal(model.other, model.one)
