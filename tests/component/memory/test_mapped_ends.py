"""A worker whose weights are mapped leaves, or finishes: what is whose memory from then on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ps_worker as ps
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Message
from ps_wire.sockets.shared_memory import AVAILABLE
from ps_worker.memory.os_memory import can_overlay
from tests.component.mapped import SMALL, Wide, mapped, script, sgd
from tests.component.reference import assert_same, seeded
from tests.component.service import Cluster, fresh_name, run_workers
from tests.until import LIMIT_S

pytestmark = pytest.mark.skipif(not (AVAILABLE and can_overlay()), reason="no memory to be mapped here")


def wrapped(worker: ps.Worker, **options: object) -> tuple[nn.Module, ps.WrappedOptimizer]:
    """Two layers of zeros, in several partitions on both shards; SGD with lr 1."""
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, buckets=SMALL, **options)
    mapped(optimizer)
    return model, optimizer


def backward(model: nn.Module) -> None:
    """Leaves gradients of zeros."""
    (model(torch.ones(2, 64)).sum() * 0.0).backward()


def test_what_a_worker_does_to_its_gradients_once_it_has_left_changes_nobodys_weights(cluster: Cluster):
    """Its last push counts, and was copied before `leave` returned: the step closes later."""
    left = threading.Event()

    def body(worker: ps.Worker) -> None:
        model, optimizer = wrapped(worker, overlap=True)
        for _ in range(3):  # from then on `step()` returns before its own step has closed
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
        if worker.rank == 1:
            backward(model)
            optimizer.step()
            gradients = mapped(optimizer).gradients.tensors  # shards read them where they lie
            worker.leave()
            for flat in gradients:
                flat.fill_(1000.0)
            left.set()
            return
        assert left.wait(LIMIT_S)
        backward(model)
        optimizer.step()
        worker.synchronize()
        assert not any(parameter.any() for parameter in model.parameters())

    run_workers(cluster, body, num_workers=2)


def test_the_weights_of_who_trained_alone_stay_where_they_are_at_the_end(cluster: Cluster):
    """Nobody writes them any more, so nothing is copied, neither here nor on a shard."""
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        model, twin = seeded(Wide), seeded(Wide)
        optimizer = worker.wrap(sgd(model), model, buckets=SMALL)
        memory = mapped(optimizer).memory
        script(0, model, optimizer)
        halves, windows = list(memory._halves), list(memory._windows)
        sent = sum(cell.meters.bytes_out for cell in cells(cluster, job))
        worker.finish()
        script(0, twin, sgd(twin, fused=True))
        assert_same(model, twin)
        assert not memory.mapped
        assert not any(half.written(at=at, nbytes=count) for half in halves for at, count in windows)
        model.first.weight.data.zero_()  # they are the script's
        worker.leave()
        assert sum(cell.meters.bytes_out for cell in cells(cluster, job)) > sent
        assert not any(cell.values.now.eq(0).all() for cell in cells(cluster, job))

    run_workers(cluster, body, job=job)


def test_once_the_job_has_ended_weights_are_sent_from_where_they_lie(cluster: Cluster):
    """Who asks before gets a copy, for the shard may write there again before it has left."""
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        wrapped(worker)
        for cell in cells(cluster, job):
            for ended in (True, False):
                outlet = Kept()
                cell.read(1, 1, outlet, 0, ended=ended)
                (frame,) = outlet.frames
                payload = np.frombuffer(frame.payload, dtype=np.float32)
                assert np.shares_memory(payload, cell.values.now.numpy()) is ended

    run_workers(cluster, body, job=job)


def test_workers_that_finish_at_different_times_have_the_same_weights_in_the_end(cluster: Cluster):
    """Who finishes first keeps a copy of what it has, and gets the last weights."""
    models = [seeded(Wide) for _ in range(2)]

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        optimizer = worker.wrap(sgd(model), model, buckets=SMALL)
        mapped(optimizer)
        for _ in range(1 + worker.rank):
            script(worker.rank, model, optimizer)
        worker.finish()
        mine = [parameter.detach().clone() for parameter in model.parameters()]
        worker.leave()
        assert all(map(torch.equal, model.parameters(), mine))

    run_workers(cluster, body, num_workers=2)
    assert_same(*models)


class Kept:
    """An outlet that keeps what is sent."""

    def __init__(self) -> None:
        self.frames: list[wire.Frame] = []

    def send(self, message: Message) -> None:
        self.frames.append(message.frame)


def cells(cluster: Cluster, job: str) -> Iterator[Any]:
    for server in cluster.shards:
        yield from server.shard.table(job, 0).cells()
