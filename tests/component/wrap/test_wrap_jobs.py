"""A wrapped model in its job: the start, buffers, push weights, abstentions, unequal numbers of steps."""

from __future__ import annotations

import contextlib
import copy
import logging
from typing import Any

import pytest
import torch

import ps_worker as ps
from tests.component.models import Mlp, Normed, loss_of
from tests.component.reference import alone, assert_same, batch, seeded, served
from tests.component.scripts import STEPS, sgd, train
from tests.component.service import Cluster, figures, fresh_name, partitions, run_workers
from tests.inside import exchange_of, steps_of

# -- the start -----------------------------------------------------------------------------------------


class HalfTrained(torch.nn.Module):
    """`body` is not in the optimizer; `scale` is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(13, 4)
        self.head = torch.nn.Linear(4, 2)
        self.register_buffer("scale", torch.randn(4))
        self.register_buffer("hidden", torch.randn(3), persistent=False)


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_all_start_from_worker_0s_bytes(cluster: Cluster, consistency: str):
    """Also frozen parameters that no optimizer holds, and buffers."""
    models = [seeded(HalfTrained, seed=rank) for rank in range(3)]
    expected = copy.deepcopy(models[0])

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        worker.wrap(sgd(model.head), model)
        for (name, got), wanted in zip(
            [*model.named_parameters(), *model.named_buffers()],
            [*expected.parameters(), *expected.buffers()],
            strict=True,
        ):
            assert torch.equal(got, wanted), name
        worker.finish()

    run_workers(cluster, body, num_workers=3, consistency=consistency)


def test_buffers_that_share_memory(cluster: Cluster):
    """As the views that rotary embeddings keep."""

    class Shared(Mlp):
        def __init__(self) -> None:
            super().__init__()
            angles = torch.randn(6, 4)
            self.register_buffer("all", angles)
            self.register_buffer("part", angles[:3])

    models = [seeded(Shared, seed=rank) for rank in range(2)]
    expected = copy.deepcopy(models[0])

    def body(worker: ps.Worker) -> None:
        worker.wrap(sgd(models[worker.rank]), models[worker.rank])
        assert torch.equal(models[worker.rank].part, expected.part)
        worker.finish()

    run_workers(cluster, body, num_workers=2)


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_buffers_are_local_while_training_and_equal_after_finish(cluster: Cluster, consistency: str):
    """The lowest worker's count at the end."""
    models = [seeded(Normed, seed=rank) for rank in range(2)]
    means: list[Any] = [None, None]

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        optimizer = worker.wrap(sgd(model), model)
        train(worker.rank, model, optimizer)
        means[worker.rank] = model.norm.running_mean.clone()
        worker.finish()

    run_workers(cluster, body, num_workers=2, consistency=consistency)
    assert not torch.equal(means[0], means[1])
    for model in models:
        assert torch.equal(model.norm.running_mean, means[0])
        assert int(model.norm.num_batches_tracked) == STEPS
    assert_same(models[1], models[0])


# -- weights of pushes, abstentions --------------------------------------------------------------------


def test_pushes_weigh_as_many_samples_as_the_loader_gave(cluster: Cluster):
    """Five samples over two workers: 3 and 2; the mean is that of the five."""
    data = [batch(0, index, 13) for index in range(5)]
    model = seeded(Mlp)
    got = [copy.deepcopy(model) for _ in range(2)]
    expected = copy.deepcopy(model)

    def body(worker: ps.Worker) -> None:
        mine = got[worker.rank]
        optimizer = worker.wrap(sgd(mine), mine, weight="samples")
        loader = worker.loader(data, batch_size=3, shuffle=False)
        assert [len(x) for x in loader] == [3 - worker.rank]
        for x in [next(iter(loader))]:
            assert worker.stats().samples == 2 * len(x)  # both passes were handed out for this push
            mine(x).square().mean().backward()
            optimizer.step()
        worker.finish()

    run_workers(cluster, body, num_workers=2)
    gradients = []
    for part in (data[:3], data[3:]):
        expected.zero_grad()
        expected(torch.stack(part)).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in expected.parameters()])
    for parameter, first, second in zip(expected.parameters(), *gradients, strict=True):
        parameter.grad = (first * 6 + second * 4) / 10
    torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9, fused=True).step()
    assert_same(got[0], expected)
    assert_same(got[1], expected)


def noted_weights(optimizer: Any) -> list[float]:
    """What the pushes of table 0 will weigh, as they leave."""
    weights: list[float] = []
    exchange = exchange_of(optimizer)
    push = exchange.push

    def noting(partition: Any, **given: Any) -> None:
        weights.append(given["weight"])
        push(partition, **given)

    exchange.push = noting
    return weights


def test_samples_of_an_abstained_step_do_not_weigh_in_the_next(cluster: Cluster):
    """The abstained batch's gradient was never pushed."""

    def body(worker: ps.Worker) -> list[float]:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model, weight="samples", overlap=False)
        weights = noted_weights(optimizer)
        for number, x in enumerate(worker.loader([batch(0, index, 13) for index in range(8)], batch_size=4)):
            if number == 1:
                model(x).square().mean().backward()
            optimizer.step()
        worker.finish()
        return weights

    assert set(run_workers(cluster, body)[0]) == {4.0}


@pytest.mark.parametrize("overlap", [True, False])
def test_samples_of_a_validation_pass_do_not_weigh(cluster: Cluster, overlap: bool):
    """Gradients on or off: neither loader knows what it is for. Accumulated batches all weigh."""

    def body(worker: ps.Worker) -> list[float]:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model, weight="samples", overlap=overlap)
        weights = noted_weights(optimizer)
        training = worker.loader([batch(0, index, 13) for index in range(12)], batch_size=2)
        validation = worker.loader([batch(1, index, 13) for index in range(41)], batch_size=8)
        for _ in range(2):
            for number, x in enumerate(training):
                with optimizer.no_sync() if number % 2 == 0 else contextlib.nullcontext():
                    model(x).square().mean().backward()
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad()
            for x in validation:
                model(x)
        worker.finish()
        assert steps_of(worker).data.samples == 2 * (12 + 41)
        return weights

    assert set(run_workers(cluster, body)[0]) == {4.0}


def test_a_strict_worker_gets_an_error_where_its_learning_rate_was_not_taken(cluster: Cluster):
    """It alone: the other, whose was taken, goes on."""
    models = [seeded(Mlp) for _ in range(2)]

    def body(worker: ps.Worker) -> int:
        mine = models[worker.rank]
        optimizer = worker.wrap(sgd(mine), mine, strict_hyperparameters=True)
        for step in range(STEPS):
            if step == 1 and worker.rank == 1:
                optimizer.param_groups[0]["lr"] = 0.5
            loss_of(mine, worker.rank, step).backward()
            if step == 1 and worker.rank == 1:
                with pytest.raises(ps.HyperparametersDiffer, match="worker 0"):
                    optimizer.step()
                break
            optimizer.step()
            optimizer.zero_grad()
        if worker.rank == 0:
            worker.finish()
        return worker.step

    assert run_workers(cluster, body, num_workers=2)[0] == STEPS


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_step_without_backward_abstains_and_is_counted(cluster: Cluster, consistency: str):
    job = fresh_name()
    model = seeded(Mlp)
    models = [copy.deepcopy(model) for _ in range(2)]

    def body(worker: ps.Worker) -> None:
        mine = models[worker.rank]
        optimizer = worker.wrap(sgd(mine), mine)
        for step in range(STEPS):
            if step == 2 or worker.rank == 0:
                loss_of(mine, worker.rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert worker.step == STEPS
        assert worker.stats().abstained == (0 if worker.rank == 0 else STEPS - 1)
        worker.finish()

    run_workers(cluster, body, num_workers=2, consistency=consistency, job=job)
    each = partitions(cluster, job)
    assert figures(cluster, job, 0)["applied"] == STEPS * each
    counts = figures(cluster, job, 1)
    assert counts["applied"] == each
    assert counts["abstained"] == (STEPS - 1) * each
    assert counts["received"] == STEPS * each
    assert_same(models[1], models[0])


def test_the_first_step_without_a_gradient_is_said_and_no_other(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model)
        for _ in range(3):
            optimizer.step()
        assert optimizer.abstained == 3

    with caplog.at_level(logging.INFO, "ps_worker"):
        run_workers(cluster, body)
    (said,) = [text for text in caplog.messages if "abstains" in text]
    assert said.startswith(
        "worker 0: step 0 has no gradient: this worker abstains (said once). If that is not"
    )
    assert said.endswith("is the model that the loss is computed with the one that was wrapped?")


def test_an_abstention_is_not_in_the_mean(cluster: Cluster):
    """Where one of two abstains, the other's gradient is applied whole."""
    model = seeded(Mlp)

    def script(rank: int, mine: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            if rank == 0:
                loss_of(mine, 0, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    expected = alone(script, model, sgd)
    assert_same(served(cluster, script, model, sgd, num_workers=2), expected)


def test_a_backward_that_no_step_follows_is_settled_by_finish(cluster: Cluster):
    """With overlap its buckets have left already; nobody waits for the rest of that step."""
    job = fresh_name()
    models = [seeded(Mlp) for _ in range(2)]
    buckets = ps.BucketOptions(bucket_bytes=0, first_bucket_bytes=0)

    def body(worker: ps.Worker) -> None:
        mine = models[worker.rank]
        optimizer = worker.wrap(sgd(mine), mine, overlap=True, buckets=buckets)
        train(worker.rank, mine, optimizer, range(2 + 3 * worker.rank))
        if worker.rank == 0:
            for parameter in mine.first.parameters():
                parameter.requires_grad_(False)
            loss_of(mine, 0, 9).backward()
        worker.finish()

    run_workers(cluster, body, num_workers=2, job=job)
    assert_same(models[1], models[0])
    counts = figures(cluster, job, 0)
    assert counts["received"] == 3 * partitions(cluster, job)
    assert counts["abstained"] == 2  # the two parameters without a gradient


@pytest.mark.parametrize("consistency", ["bsp", "ssp:0", "ssp:2", "asp"])
def test_unequal_numbers_of_steps_end(cluster: Cluster, consistency: str):
    """Law 18, in process."""
    models = [seeded(Mlp) for _ in range(3)]

    def body(worker: ps.Worker) -> int:
        mine = models[worker.rank]
        train(worker.rank, mine, worker.wrap(sgd(mine), mine), range(1 + 3 * worker.rank))
        worker.finish()
        return worker.step

    assert run_workers(cluster, body, num_workers=3, consistency=consistency) == [1, 4, 7]
    for model in models[1:]:
        assert_same(model, models[0])
