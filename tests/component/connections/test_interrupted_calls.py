"""Ctrl-C in `connect`, `wrap` or `finish`: the same call again goes on where the first one was."""

from __future__ import annotations

import copy
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_worker.membership.membership import Membership
from tests.component.interrupting import interrupted_at
from tests.component.models import Mlp
from tests.component.reference import alone, assert_same, seeded
from tests.component.scripts import sgd, train
from tests.component.service import LIMIT_S, Cluster, fresh_name, run_workers, threads_of_workers
from tests.inside import steps_of
from tests.until import until

STRIDE = 40  # of the lines that one test interrupts


@pytest.mark.parametrize("first", [0, 13, 26])
def test_wherever_ctrl_c_lands_in_connect_nobody_is_in_the_job_who_would_not_leave_it(
    cluster: Cluster, first: int
):
    """So the next one has the number, and trains alone."""
    before = threads_of_workers()
    interrupted, line = True, first
    while interrupted:
        job, made = fresh_name(), []

        def connect(job: str = job) -> ps.Worker:
            return ps.connect(servers=cluster.servers, job=job, worker=0)

        interrupted = interrupted_at(line, lambda connect=connect, made=made: made.append(connect()))
        with made[0] if made else connect() as worker:
            model = seeded(Mlp)
            train(0, model, worker.wrap(sgd(model), model), range(1))
            worker.finish()
            assert worker.step == 1
        line += STRIDE
    assert line > 500
    until(lambda: threads_of_workers() <= before, "nothing is left of those who were interrupted")


def test_ctrl_c_once_more_while_an_interrupted_connect_leaves_ends_its_heartbeats(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """The number is free once its lease is over."""
    before, job = threads_of_workers(), fresh_name()

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Membership, "leave", interrupt)
        connect = partial(ps.connect, servers=cluster.servers, job=job, worker=0)
        assert interrupted_at(0, connect, inside="open_all")
    until(lambda: threads_of_workers() <= before, "nothing is left of it in this process")


@pytest.mark.parametrize("inside", ["joined", "open_all", "_header"])
def test_a_connect_that_is_interrupted_once_it_has_joined_leaves(
    cluster: Cluster, inside: str, tmp_path: Path
):
    """As the coordinator has answered, as connections are opened, and behind that."""
    connect = partial(ps.connect, servers=cluster.servers, job=fresh_name(), worker=0, record=tmp_path)
    assert interrupted_at(0, connect, inside=inside)
    with connect() as worker:
        assert worker.rank == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_wrap_that_is_interrupted_while_it_waits_is_made_again(cluster: Cluster, rank: int):
    """The job starts with worker 0's weights, and all is as if nothing had been."""
    models = [seeded(Mlp), seeded(Mlp, 1)]
    expected = alone(train, models[0], sgd, num_workers=2)
    interrupted = threading.Event()

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        inner = sgd(model)
        if worker.rank == rank:
            assert interrupted_at(0, lambda: worker.wrap(inner, model), inside="wait_started")
            interrupted.set()
        else:
            assert interrupted.wait(LIMIT_S)
        train(worker.rank, model, worker.wrap(inner, model))
        with pytest.raises(ps.UsageError, match="is in table 0 already"):
            worker.wrap(inner, model)
        worker.finish()

    run_workers(cluster, body, num_workers=2)
    assert_same(models[0], expected)
    assert_same(models[1], expected)


@pytest.mark.parametrize("first", [0, 7, 18, 29])
def test_wherever_ctrl_c_lands_in_wrap_a_second_wrap_goes_on(cluster: Cluster, first: int):
    """With the optimizer's state, and the buffers, that were there at the first."""
    start = torch.nn.Sequential(torch.nn.Linear(13, 5), torch.nn.BatchNorm1d(5))
    warm = sgd(start)
    start(torch.randn(4, 13)).sum().backward()
    warm.step()
    interrupted, line = True, first
    while interrupted:
        model, plain = copy.deepcopy(start), copy.deepcopy(start)
        inner, reference = sgd(model), sgd(plain, fused=True)
        inner.load_state_dict(warm.state_dict())
        state = warm.state_dict()
        state["param_groups"][0]["fused"] = True
        reference.load_state_dict(state)

        def body(
            worker: ps.Worker,
            model: torch.nn.Module = model,
            plain: torch.nn.Module = plain,
            inner: Any = inner,
            reference: Any = reference,
            line: int = line,
        ) -> bool:
            interrupted = interrupted_at(line, lambda: worker.wrap(inner, model, overlap=True))
            made = bool(steps_of(worker).optimizers)  # or it was only about to return
            optimizer = steps_of(worker).optimizers[0] if made else worker.wrap(inner, model, overlap=True)
            for step in range(2):
                for twin, steps in ((model, optimizer), (plain, reference)):
                    twin(torch.full((3, 13), 0.5 + step)).square().sum().backward()
                    steps.step()
                    steps.zero_grad()
            worker.finish()
            assert worker.step == 2
            return interrupted

        (interrupted,) = run_workers(cluster, body)
        assert_same(model, plain)
        assert torch.equal(model[1].running_mean, plain[1].running_mean)
        line += STRIDE
    assert line > 100


def test_another_table_after_an_interrupted_wrap_is_refused(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model, other = seeded(Mlp), seeded(lambda: torch.nn.Linear(3, 2))
        inner = sgd(model)
        assert interrupted_at(0, lambda: worker.wrap(inner, model), inside="wait_made")
        with pytest.raises(ps.UsageError, match="interrupted has made table 0 of other parameters"):
            worker.wrap(sgd(other), other)
        train(0, model, worker.wrap(inner, model))
        worker.wrap(sgd(other), other)
        worker.finish()

    run_workers(cluster, body)


def test_a_finish_that_is_interrupted_while_it_waits_waits_again(cluster: Cluster):
    """No step is taken between."""
    interrupted = threading.Event()

    def body(worker: ps.Worker) -> torch.nn.Module:
        model = seeded(Mlp)
        optimizer: Any = worker.wrap(sgd(model), model)
        train(worker.rank, model, optimizer)
        if worker.rank == 0:
            assert interrupted_at(0, worker.finish, inside="_wait_for")
            with pytest.raises(ps.UsageError, match="no step comes after finish"):
                optimizer.step()
            interrupted.set()
        else:
            assert interrupted.wait(LIMIT_S)
        worker.finish()
        return model

    first, second = run_workers(cluster, body, num_workers=2)
    assert_same(first, second)


@pytest.mark.parametrize("first", [0, 7, 18, 29])
def test_wherever_ctrl_c_lands_in_finish_a_second_one_finishes(cluster: Cluster, first: int):
    """Then the job has ended, with the buffers of its last step."""
    interrupted, line = True, first
    while interrupted:
        job = fresh_name()

        def body(worker: ps.Worker, line: int = line) -> bool:
            model = torch.nn.Sequential(torch.nn.Linear(13, 5), torch.nn.BatchNorm1d(5))
            optimizer: Any = worker.wrap(sgd(model), model, overlap=True)
            model(torch.randn(4, 13)).sum().backward()
            optimizer.step()
            interrupted = interrupted_at(line, worker.finish)
            worker.finish()
            return interrupted

        (interrupted,) = run_workers(cluster, body, job=job)
        with ps.connect(servers=cluster.servers, job=job) as reader:
            assert reader.ended
        line += STRIDE
    assert line > 100
