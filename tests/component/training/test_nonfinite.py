"""Gradients that hold NaN, from the worker's side: who is told what, and what the others train on."""

from __future__ import annotations

import threading

import pytest
import torch

import ps_worker as ps
from ps_wire.errors import JobMismatch, NonFiniteGradient, UsageError
from tests.component.reference import batch, seeded
from tests.component.service import Cluster, figures, fresh_name, partitions, run_workers
from tests.inside import link_of
from tests.until import LIMIT_S

MODELS = pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
STEPS = 3


def train(worker: ps.Worker, *, spoil: bool, model: torch.nn.Module) -> None:
    """`STEPS` steps; with `spoil` every gradient of this worker's step 1 is NaN."""
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, overlap=False)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch(worker.rank, step, 4, 5)).square().mean()
        (loss * float("nan") if spoil and step == 1 else loss).backward()
        optimizer.step()


def net() -> torch.nn.Module:
    return seeded(lambda: torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 2)))


@MODELS
def test_error_ends_the_sender_and_the_others_go_on(cluster: Cluster, consistency: str) -> None:
    """Its `step()` raises, naming the parameter; nobody's weights become NaN; others are told who left."""
    said: list[str] = []
    heard = threading.Event()

    def body(worker: ps.Worker) -> torch.nn.Module:
        model = net()
        if worker.rank == 1:
            with pytest.raises(
                NonFiniteGradient, match="of worker 1 has non-finite values in step 1"
            ) as failed:
                train(worker, spoil=True, model=model)
            error = failed.value
            assert error.exit_code == 1
            assert error.facts["parameter"] in dict(model.named_parameters())
            assert (error.facts["worker"], error.facts["table"], error.facts["step"]) == (1, 0, 1)
            assert "--nonfinite skip" in error.message
            with pytest.raises(NonFiniteGradient):
                worker.finish()
            worker.leave(f"{type(error).__name__}: {error}")
            return model

        def say(text: str) -> None:
            said.append(text)
            if "left: NonFiniteGradient" in text:
                heard.set()

        link_of(worker).presence.membership._log = say
        train(worker, spoil=False, model=model)
        assert heard.wait(LIMIT_S)
        worker.finish()
        return model

    good, _ = run_workers(cluster, body, num_workers=2, consistency=consistency)
    assert all(parameter.isfinite().all() for parameter in good.parameters())
    (line,) = [text for text in said if "left:" in text]
    assert line.startswith("worker 1 (host ")
    assert "left: NonFiniteGradient: the gradient of parameter" in line


@MODELS
def test_skip_leaves_it_out_and_all_go_on(cluster: Cluster, consistency: str) -> None:
    """The bad step counts as abstained on every partition; the weights stay finite on all workers."""
    job = fresh_name()

    def body(worker: ps.Worker) -> torch.nn.Module:
        model = net()
        train(worker, spoil=worker.rank == 1, model=model)
        worker.finish()
        return model

    models = run_workers(cluster, body, num_workers=2, consistency=consistency, job=job, nonfinite="skip")
    assert all(parameter.isfinite().all() for model in models for parameter in model.parameters())
    count = partitions(cluster, job)
    books = figures(cluster, job, 1)
    assert (books["received"], books["applied"], books["abstained"]) == (3 * count, 2 * count, count)
    assert figures(cluster, job, 0)["abstained"] == 0


def test_skip_is_what_an_abstention_would_have_been(cluster: Cluster) -> None:
    """The weights are equal to the bit, through tables without autograd."""

    def weights(*, abstains: bool) -> torch.Tensor:
        def body(worker: ps.Worker) -> torch.Tensor:
            table = worker.table({"w": torch.zeros(5000)}, optimizer=ps.Adam(lr=0.1))
            for step in range(STEPS):
                bad = worker.rank == 1 and step == 1
                if bad and abstains:
                    table.abstain()
                else:
                    gradient = batch(worker.rank, step, 5000)
                    table.push({"w": gradient * float("nan") if bad else gradient}, weight=1.0 + worker.rank)
                pulled = table.pull().result(LIMIT_S)
            worker.finish()
            return pulled.values["w"]

        first, second = run_workers(cluster, body, num_workers=2, nonfinite="skip")
        assert torch.equal(first, second)
        return first

    assert torch.equal(weights(abstains=False), weights(abstains=True))


def test_apply_spreads_it(cluster: Cluster) -> None:
    """As in plain torch: whoever asks for it gets NaN."""

    def body(worker: ps.Worker) -> torch.nn.Module:
        model = net()
        train(worker, spoil=worker.rank == 1, model=model)
        worker.finish()
        return model

    for model in run_workers(cluster, body, num_workers=2, nonfinite="apply"):
        assert all(parameter.isnan().all() for parameter in model.parameters())


def test_a_push_without_a_pull_is_told_at_finish(one_shard: Cluster) -> None:
    """A table's last push may be bad: the job does not end as if it had been applied."""

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))
        table.push({"w": torch.full((3,), float("inf"))}).result(LIMIT_S)
        with pytest.raises(NonFiniteGradient, match="parameter 'w' of worker 0"):
            worker.finish()

    run_workers(one_shard, body)


def test_another_choice_than_the_jobs_is_refused(one_shard: Cluster) -> None:
    """Named, with what the job has."""
    job = fresh_name()
    common = {"servers": one_shard.servers, "job": job, "num_workers": 2}
    with (
        ps.connect(**common, nonfinite="skip"),
        pytest.raises(JobMismatch, match=r"nonfinite of job .*: the job has skip, this worker wants error"),
    ):
        ps.connect(**common)


def test_an_unknown_choice_is_a_usage_error(one_shard: Cluster) -> None:
    """Before anything is asked of a server."""
    with pytest.raises(
        UsageError, match=r"unknown nonfinite 'drop'; valid are: error, skip, apply \(PS_NONF"
    ):
        ps.connect(servers=one_shard.servers, nonfinite="drop")
