"""Workers that fall silent for longer than their lease: others go on, and they join again by themselves."""

from __future__ import annotations

import threading

import pytest
import torch

import ps_worker as ps

from .models import Mlp, loss_of
from .reference import seeded
from .service import fresh_name, together

LIMIT_S = 20.0


def table_of(worker: ps.Worker) -> ps.Table:
    return worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0))


def step(table: ps.Table, value: float = 1.0) -> float:
    table.push({"w": torch.full((3000,), -value)})
    return float(table.pull().result(LIMIT_S).values["w"].min())  # without a barrier partitions may differ


@pytest.mark.parametrize("consistency", ["bsp", "ssp:0"])
def test_a_silent_worker_is_evicted_and_joins_again(cluster, consistency, caplog):
    """The other goes on without it, and then with it, from a step that is named; nobody gets an error."""
    job = fresh_name()
    evicted = threading.Event()
    again = threading.Event()

    def join(rank):
        return ps.connect(
            servers=cluster.servers, job=job, consistency=consistency, num_workers=2, worker=rank
        )

    def stays():
        with join(0) as worker:
            table = table_of(worker)
            values = [step(table) for _ in range(4)]  # from the third on the other is silent
            evicted.set()
            while not again.is_set():
                values.append(step(table))
            worker.finish()
            return values, table.step

    def falls_silent():
        with join(1) as worker:
            table = table_of(worker)
            for _ in range(2):
                step(table)
            cluster.evict(job, 1)
            assert evicted.wait(LIMIT_S)
            before = table.step
            step(table, 1000.0)  # void
            entered = table.step
            for _ in range(3):
                step(table)
            again.set()
            worker.finish()
            return before, entered, worker._link._now.joined.incarnation

    with caplog.at_level("INFO"):
        (values, steps), (before, entered, incarnation) = together([stays, falls_silent])
    assert before == 2
    assert 4 <= entered <= steps
    assert incarnation == 2
    assert values == sorted(values)
    assert max(values) < 1000.0
    assert "event=evict worker=1 incarnation=1" in caplog.text
    assert "event=rejoin worker=1 incarnation=2" in caplog.text


@pytest.mark.parametrize("overlap", [True, False])
def test_a_training_loop_goes_on_after_an_eviction_without_a_line_of_code(cluster, overlap):
    """Weights, buffers, param_groups and what is registered are those of the lowest worker that trains."""
    job = fresh_name()
    gone, again = threading.Event(), threading.Event()

    def body(rank):
        with ps.connect(servers=cluster.servers, job=job, num_workers=2, worker=rank) as worker:
            model = torch.nn.Sequential(seeded(Mlp), torch.nn.BatchNorm1d(3))
            optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, overlap=overlap)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
            mine = torch.full((), float(rank))
            worker.register_state("scheduler", scheduler)
            worker.register_state("mine", mine)

            def train():
                loss_of(model[0], worker.rank, worker.step).backward()
                model[1].running_mean.add_(1.0)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()

            train()
            if rank == 1:
                cluster.evict(job, 1)
                assert gone.wait(LIMIT_S)
                train()
                found = scheduler.last_epoch, worker.step, float(mine), float(model[1].running_mean[0])
                again.set()
            else:
                for _ in range(3):
                    train()
                gone.set()
                while not again.is_set():
                    train()
                found = None
            worker.finish()
            return found, {name: it.clone() for name, it in model.state_dict().items()}

    (_, first), (found, second) = together([lambda: body(0), lambda: body(1)])
    epoch, at, mine, mean = found
    assert at >= 4
    assert mine == 0.0
    assert 0 <= at - epoch <= 2  # the state is that of a step before the one that it enters at
    assert mean == epoch
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_stream_that_breaks_is_no_death(cluster, caplog):
    """It is made again; what was said on the way is not lost, nor taken twice."""
    job = fresh_name()
    with (
        caplog.at_level("INFO"),
        ps.connect(servers=cluster.servers, job=job, num_workers=1) as worker,
    ):
        for number in range(3):
            worker._link._membership._stream._call.cancel()
            table = worker.table({f"w{number}": torch.zeros(10)}, optimizer=ps.SGD(lr=1.0))
            table.push({f"w{number}": torch.ones(10)}).result(LIMIT_S)
        worker.finish()
    assert "event=resume worker=0" in caplog.text
    assert "event=evict" not in caplog.text
