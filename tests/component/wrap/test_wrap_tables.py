"""Two optimizers of one script, what `wrap` refuses, and what comes before the start and after the end."""

from __future__ import annotations

import copy
import threading
from functools import partial
from typing import Any

import pytest
import torch

import ps_worker as ps
import ps_worker.exchange.in_flight
from tests.component.differing import refused
from tests.component.models import Mlp, Normed
from tests.component.reference import assert_same, batch, seeded
from tests.component.scripts import STEPS, sgd, train
from tests.component.service import LIMIT_S, Cluster, fresh_name, run_workers, together
from tests.inside import arrival_of, link_of


def gan(rank: int, pair: torch.nn.ModuleDict, first: Any, second: Any) -> None:
    """A discriminator's and a generator's step in turn; the generator's backward runs through both."""
    for step in range(STEPS):
        first.zero_grad()
        fake = pair["made"](batch(rank, step, 4, 13))
        pair["judge"](fake.detach()).square().mean().backward()
        first.step()
        for parameter in pair["judge"].parameters():
            parameter.requires_grad_(False)
        second.zero_grad()
        pair["judge"](fake).sub(1).square().mean().backward()
        second.step()
        for parameter in pair["judge"].parameters():
            parameter.requires_grad_(True)


def make_pair() -> torch.nn.ModuleDict:
    return torch.nn.ModuleDict({"made": torch.nn.Linear(13, 6), "judge": torch.nn.Linear(6, 1)})


@pytest.mark.parametrize("overlap", ["auto", False])
def test_two_optimizers_are_two_tables(cluster: Cluster, overlap: Any):
    pair = seeded(make_pair)
    expected, got = copy.deepcopy(pair), copy.deepcopy(pair)

    def plain() -> None:
        adam = torch.optim.Adam(expected["made"].parameters(), lr=0.01, fused=True)
        gan(0, expected, sgd(expected["judge"], fused=True), adam)

    def body(worker: ps.Worker) -> None:
        adam = torch.optim.Adam(got["made"].parameters(), lr=0.01)
        first = worker.wrap(sgd(got["judge"]), got["judge"], overlap=overlap)
        second = worker.wrap(adam, got["made"], overlap=overlap)
        gan(0, got, first, second)
        assert (first.step_number, second.step_number) == (STEPS, STEPS)
        worker.finish()

    together([plain])
    run_workers(cluster, body)
    assert_same(got, expected)


class _GivenUp(Exception):
    """Whoever waits has said for what."""


def test_optimizers_that_step_unequally_often_wait_and_name_their_tables(cluster: Cluster, monkeypatch: Any):
    """Worker 0 steps both in turn, worker 1 the first one only: they wait for each other, at two tables."""
    monkeypatch.setattr(ps_worker.exchange.in_flight, "REPORT_WAIT_S", 0.2)
    said: dict[int, str] = {}

    def body(worker: ps.Worker) -> None:
        pair = seeded(make_pair)
        first = worker.wrap(sgd(pair["judge"]), pair["judge"])
        second = worker.wrap(sgd(pair["made"]), pair["made"])

        def say(text: str, workers: str) -> None:
            if "waiting for weights" in text:
                said[worker.rank] = f"{text}; {workers}"
                stuck = "of table 1 at step 1" in text and "of table 0 at step 2" in said.get(1, "")
                if worker.rank == 0 and stuck:  # before, each may wait for one who only is slow
                    raise _GivenUp

        arrival_of(first)._report = arrival_of(second)._report = say

        def train() -> None:
            for _ in range(2):
                pair["judge"](pair["made"](batch(worker.rank, 0, 4, 13))).square().mean().backward()
                first.step()
                if worker.rank == 0:
                    second.step()

        if worker.rank == 1:  # it goes on when the other has left
            train()
        else:
            with pytest.raises(_GivenUp):
                train()

    run_workers(cluster, body, num_workers=2)
    assert "of table 1 at step 1" in said[0]
    assert said[0].endswith("behind it, on this table: [1]")
    assert "of table 0 at step 2" in said[1]
    assert said[1].endswith("behind it, on this table: [0]")


def test_what_wrap_refuses(cluster: Cluster):
    def wraps(make: Any, error: type[Exception], text: str, **options: Any) -> None:
        def body(worker: ps.Worker) -> None:
            model = seeded(Mlp)
            with pytest.raises(error, match=text):
                worker.wrap(make(model), model, **options)

        run_workers(cluster, body)

    wraps(lambda model: torch.optim.LBFGS(model.parameters()), ps.ConfigurationRefused, "several times")
    wraps(lambda _: sgd(Mlp()), ps.UsageError, "4 parameters that the model does not have")
    wraps(sgd, ps.UsageError, "overlap must be", overlap="on")
    wraps(sgd, ps.UsageError, "weight must be", weight="batches")
    wraps(sgd, ps.UsageError, "clip_grad_norm must be a number", clip_grad_norm="1")
    wraps(sgd, ps.UsageError, "clip_grad_norm must be a number", clip_grad_norm=float("nan"))
    wraps(lambda _: None, ps.ConfigurationRefused, "not an optimizer of torch.optim")


def test_what_is_no_model_is_refused(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        with pytest.raises(ps.UsageError, match=r"wrap takes the model, a torch.nn.Module, got NoneType"):
            worker.wrap(sgd(seeded(Mlp)), None)
        model = seeded(Mlp)
        optimizer = sgd(model)
        with pytest.raises(ps.UsageError, match=r"the optimizer first: worker\.wrap\(optimizer, model\)"):
            worker.wrap(model, optimizer)
        wrapped = worker.wrap(optimizer, model)
        with pytest.raises(ps.UsageError, match=r"this optimizer is what worker\.wrap has returned"):
            worker.wrap(wrapped, model)

    run_workers(cluster, body)


def test_a_wrapped_optimizer_refuses_what_it_cannot_do(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model)
        assert isinstance(optimizer, torch.optim.Optimizer)
        with pytest.raises(ps.UsageError, match="1 parameters that the model does not have"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
        assert len(optimizer.param_groups) == 1

    run_workers(cluster, body)


def test_who_comes_after_the_end_gets_the_weights_and_nothing_to_do(cluster: Cluster):
    job = fresh_name()
    models = [seeded(Normed, seed=rank) for rank in range(2)]
    checkpoint: dict[str, Any] = {}

    def body(worker: ps.Worker) -> None:
        model = models[0]
        optimizer = worker.wrap(sgd(model), model)
        train(0, model, optimizer)
        optimizer.param_groups[0]["lr"] = 0.25
        checkpoint.update(optimizer.state_dict())
        worker.finish()

    def late(worker: ps.Worker) -> None:
        assert worker.ended
        optimizer = worker.wrap(sgd(models[1]), models[1])
        optimizer.load_state_dict(checkpoint)
        assert optimizer.param_groups[0]["lr"] == 0.25
        assert_same(models[1], models[0])
        assert torch.equal(models[1].norm.running_mean, models[0].norm.running_mean)
        assert list(worker.loader([1, 2, 3])) == []
        with pytest.raises(ps.UsageError, match="another --job"):
            optimizer.step()
        worker.finish()

    run_workers(cluster, body, job=job)
    run_workers(cluster, late, job=job)


def test_a_start_that_does_not_come_names_who_is_missing(cluster: Cluster):
    def one(limit_s: float) -> None:
        with ps.connect(
            servers=cluster.servers, job=fresh_name(), num_workers=3, worker=1, start_limit=limit_s
        ) as worker:
            model = seeded(Mlp)
            worker.wrap(sgd(model), model)

    for limit_s in (0.2, 2.0, 20.0):  # in a short one a coordinator that has much to do may not say it
        with pytest.raises(ps.StartLimitExceeded) as exceeded:
            together([partial(one, limit_s)])
        if "the coordinator" not in exceeded.value.message:
            break
    assert "workers 0, 2 to join" in exceeded.value.message


def test_a_start_ends_when_a_shard_is_gone_for_good_and_names_it(durable: Cluster):
    """Not after the minutes that other workers may take to come; nor is it put down to them."""
    settings = {"num_workers": 2, "retry_limit": 0.5, "lease": 60}
    with ps.connect(servers=durable.servers, job=fresh_name(), worker=0, **settings) as worker:
        model = seeded(Mlp)
        membership = link_of(worker).presence.membership
        told, killed = threading.Event(), threading.Event()

        def kill() -> None:
            assert told.wait(LIMIT_S)
            durable.kill(1)
            killed.set()

        membership._log = lambda text: told.set() if "worker 1 to join" in text else None
        thread = threading.Thread(target=kill)
        thread.start()
        with pytest.raises(ps.ConnectionLost, match=r"shard 1 at .* is gone since"):
            worker.wrap(sgd(model), model)
        thread.join(LIMIT_S)
        assert killed.is_set()


def test_optimizers_that_are_wrapped_in_another_order_are_refused(cluster: Cluster):
    """Tables go by their number: here worker 1 wraps the halves of a GAN the other way round."""

    def bring(worker: ps.Worker) -> None:
        half = list(seeded(make_pair).values())[worker.rank]
        worker.wrap(sgd(half), half)

    told = refused(cluster, bring).message
    assert told.startswith("table 0 of this job differs: shape of parameter 'weight'")
