"""`Worker.stop_job`: all workers end after the same epoch, in every consistency model."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.utils.data import TensorDataset

import ps_worker as ps
from ps_wire.errors import UsageError
from tests.component.service import Cluster, fresh_name, run_workers, status_of, together
from tests.until import LIMIT_S

DATA = TensorDataset(torch.arange(96.0).reshape(48, 2))


def wrapped(worker: ps.Worker) -> tuple[torch.nn.Module, ps.WrappedOptimizer, ps.Loader]:
    model = torch.nn.Linear(2, 1)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.0), model)
    return model, optimizer, worker.loader(DATA, batch_size=4)


def train(model: torch.nn.Module, optimizer: ps.WrappedOptimizer, x: torch.Tensor) -> None:
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def used(cluster: Cluster, job: str) -> list[tuple[int, int]]:
    return [(use.epoch, use.used) for use in status_of(cluster).job(job).epochs]


@pytest.mark.parametrize("consistency", ["bsp", "ssp:3", "asp"])
def test_all_end_after_the_newest_epoch_that_one_of_them_had_begun(one_shard, consistency, caplog):
    """Also who is epochs behind: it trains on to that one's end. All samples of these epochs are used."""
    job, stopped = fresh_name(), threading.Event()

    def body(worker: ps.Worker) -> tuple[list[int], int]:
        model, optimizer, loader = wrapped(worker)
        epochs, last = [], -1
        for epoch in worker.epochs(50):
            epochs.append(epoch)
            for number, (x,) in enumerate(loader):
                if worker.rank == 1 and epoch == 2 and number == 1:
                    last = worker.stop_job("its loss is small enough")
                    stopped.set()
                if worker.rank == 0 and epoch == 1 and number == 0 and consistency == "asp":
                    assert stopped.wait(LIMIT_S)  # it is far behind
                train(model, optimizer, x)
        worker.finish()
        return epochs, last

    with caplog.at_level("INFO"):
        ran = run_workers(one_shard, body, num_workers=3, consistency=consistency, job=job)
    last = ran[1][1]
    assert last >= 2
    assert [epochs for epochs, _ in ran] == [list(range(last + 1))] * 3
    assert used(one_shard, job) == [(epoch, 48) for epoch in range(last + 1)][-4:]
    assert "has stopped the job after epoch 2: its loss is small enough" in caplog.text.replace(
        f"after epoch {last}", "after epoch 2"
    )


def test_of_several_who_stop_the_first_one_counts(one_shard):
    def body(worker: ps.Worker) -> tuple[list[int], list[int]]:
        model, optimizer, loader = wrapped(worker)
        epochs, lasts = [], []
        for epoch in worker.epochs(9):
            epochs.append(epoch)
            for (x,) in loader:
                train(model, optimizer, x)
            if epoch >= 1:
                lasts.append(worker.stop_job(f"worker {worker.rank} has seen enough"))
        worker.finish()
        return epochs, lasts

    (first, lasts), (second, others) = run_workers(one_shard, body, num_workers=2)
    assert first == second
    assert {*lasts, *others} == {first[-1]}
    assert first[-1] in (1, 2)


def test_a_loop_without_our_numbers_gets_no_batch_of_a_later_epoch(one_shard):
    def body(worker: ps.Worker) -> list[int]:
        model, optimizer, loader = wrapped(worker)
        batches = []
        for epoch in range(6):
            batches.append(0)
            for (x,) in loader:
                batches[-1] += 1
                train(model, optimizer, x)
            if epoch == 2 and worker.rank == 0:
                worker.stop_job("enough")
        worker.finish()
        return batches

    first, second = run_workers(one_shard, body, num_workers=2)
    assert first == second
    assert first in ([6, 6, 6, 0, 0, 0], [6, 6, 6, 6, 0, 0])


def test_who_joins_or_comes_again_after_that_ends_with_the_others(one_shard):
    """Its loop begins at the job's epoch, and no later one begins."""
    job, came, joined = fresh_name(), threading.Event(), threading.Event()

    def connect(rank: int) -> ps.Worker:
        return ps.connect(servers=one_shard.servers, job=job, num_workers="1:2", worker=rank)

    def first() -> list[int]:
        with connect(0) as worker:
            model, optimizer, loader = wrapped(worker)
            epochs = []
            for epoch in worker.epochs(9):
                epochs.append(epoch)
                for number, (x,) in enumerate(loader):
                    if (epoch, number) == (3, 2):
                        worker.stop_job("enough")
                        came.set()
                        assert joined.wait(LIMIT_S)
                    train(model, optimizer, x)
            worker.finish()
            return epochs

    def second() -> list[int]:
        assert came.wait(LIMIT_S)
        worker = connect(1)
        joined.set()
        with worker:
            model, optimizer, loader = wrapped(worker)
            epochs = []
            for epoch in worker.epochs(9):
                epochs.append(epoch)
                for (x,) in loader:
                    train(model, optimizer, x)
            worker.finish()
            return epochs

    ran, late = together([first, second])
    assert ran == [0, 1, 2, 3]
    assert late == [3]


def test_who_comes_again_may_stop_the_job_before_its_loop(one_shard):
    """By state that it has taken up: nothing of that is undone."""
    job, epochs = fresh_name(), []

    def process(stops: bool) -> None:
        with ps.connect(servers=one_shard.servers, job=job, num_workers=1) as worker:
            model, optimizer, loader = wrapped(worker)
            if stops:
                assert worker.stop_job("it was over") == 2
            for epoch in worker.epochs(9):
                epochs.append(epoch)
                for number, (x,) in enumerate(loader):
                    if not stops and (epoch, number) == (2, 3):
                        return
                    train(model, optimizer, x)
            worker.finish()

    process(stops=False)
    process(stops=True)
    assert epochs == [0, 1, 2, 2]


def test_a_job_that_has_ended_cannot_be_stopped(one_shard):
    def body(worker: ps.Worker) -> None:
        model, optimizer, loader = wrapped(worker)
        for _ in worker.epochs(1):
            for (x,) in loader:
                train(model, optimizer, x)
        worker.finish()
        with pytest.raises(UsageError, match="has finished"):
            worker.stop_job("too late")

    run_workers(one_shard, body)


def test_who_comes_back_when_the_job_has_ended_may_stop_it(one_shard):
    """It was evicted in an epoch behind which its script stops the job: that is no error of the script's."""
    job, over = fresh_name(), threading.Event()

    def late() -> None:
        with ps.connect(servers=one_shard.servers, job=job, consistency="asp", num_workers=2) as worker:
            model, optimizer, loader = wrapped(worker)
            for _ in worker.epochs(9):
                for (x,) in loader:
                    train(model, optimizer, x)
                    if not over.is_set():
                        one_shard.evict(job, worker.rank)
                        assert over.wait(LIMIT_S)
                assert worker.ended
                assert worker.stop_job("it has seen enough") == 0
            worker.finish()

    def other() -> None:
        with ps.connect(servers=one_shard.servers, job=job, consistency="asp", num_workers=2) as worker:
            model, optimizer, loader = wrapped(worker)
            for _ in worker.epochs(1):
                for (x,) in loader:
                    train(model, optimizer, x)
            worker.finish()
        over.set()

    together([late, other], LIMIT_S)
