"""Readers over real server processes: what is read while a job trains is one exact state of it."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn.functional import cross_entropy

import ps_worker as ps

from .processes import LIMIT_S
from .servers import Servers, fresh_job
from .team import together, train

pytestmark = pytest.mark.integration

SMALL = ps.BucketOptions(bucket_bytes=16_384, first_bucket_bytes=4096, partition_bytes=4096)
READS = 5


def seeded_model() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(11, 257), torch.nn.BatchNorm1d(257), torch.nn.Linear(257, 3))
    generator = torch.Generator().manual_seed(7)  # threads share the global one
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def values(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def buffers(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([buffer.flatten().double() for buffer in model.buffers()])


@pytest.mark.parametrize(("consistency", "num_workers"), [("bsp", 2), ("asp", 1)])
def test_a_cut_has_the_bytes_of_the_weights_after_one_step(
    cluster: Servers, consistency: str, num_workers: int
) -> None:
    """On all partitions of both shards: those that a worker has after that step; so are the buffers."""
    job = fresh_job()
    started, enough = threading.Event(), threading.Event()
    steps: list[tuple[torch.Tensor, torch.Tensor]] = []
    cuts: list[tuple[ps.Cut, torch.Tensor, torch.Tensor]] = []

    def body(worker: ps.Worker) -> None:
        model = seeded_model()
        adam = torch.optim.AdamW(model.parameters(), lr=0.01)
        optimizer = worker.wrap(adam, model, buckets=SMALL)
        generator = torch.Generator().manual_seed(worker.rank)
        started.set()
        while not enough.is_set():
            if worker.rank == 0:
                steps.append((values(model), buffers(model)))
            x = torch.randn(16, 11, generator=generator)
            cross_entropy(model(x), torch.randint(3, (16,), generator=generator)).backward()
            optimizer.step()
            optimizer.zero_grad()
        if worker.rank == 0:
            steps.append((values(model), buffers(model)))
        worker.finish()

    def read() -> None:
        try:
            assert started.wait(LIMIT_S)
            with ps.connect(role="reader", servers=cluster.option, job=job) as reader:
                for _ in range(READS):
                    model = seeded_model()
                    cut = reader.read(model)
                    cuts.append((cut, values(model), buffers(model)))
        finally:
            enough.set()

    def workers() -> None:
        train(cluster, body, num_workers=num_workers, consistency=consistency, job=job)

    together([workers, read])
    for cut, weights, outside in cuts:
        assert (cut.spread, cut.buffers) == (0, "live")
        assert cut.clocks == dict.fromkeys(range(num_workers), cut.version)
        assert torch.equal(weights, steps[cut.version][0])
        assert torch.equal(outside, steps[cut.buffers_step][1])
    versions = [cut.version for cut, *_ in cuts]
    assert versions == sorted(versions)
    assert versions[0] < versions[-1]


def test_a_cut_of_two_asp_workers_has_the_same_updates_everywhere(cluster: Servers) -> None:
    """Of each worker exactly those below its clock: updates are one-hot at (worker, step) in every column."""
    job, most, columns = fresh_job(), 200, 64
    started, enough = threading.Event(), threading.Event()
    cuts: list[tuple[ps.Cut, torch.Tensor]] = []

    def body(worker: ps.Worker) -> None:
        start = {"w": torch.zeros(columns, 2, most)}
        table = worker.table(start, optimizer=ps.SGD(lr=1.0), buckets=SMALL)
        for step in range(most):
            if enough.is_set():
                break
            update = torch.zeros(columns, 2, most)
            update[:, worker.rank, step] = -1.0
            table.push({"w": update})
            table.pull().result(LIMIT_S)
            started.set()
        assert enough.wait(LIMIT_S)
        worker.finish()

    def read() -> None:
        try:
            assert started.wait(LIMIT_S)
            with ps.connect(role="reader", servers=cluster.option, job=job) as reader:
                for _ in range(READS):
                    model = torch.nn.Module()
                    model.w = torch.nn.Parameter(torch.zeros(columns, 2, most))
                    cuts.append((reader.read(model), model.w.detach()))
        finally:
            enough.set()

    together([lambda: train(cluster, body, num_workers=2, consistency="asp", job=job), read])
    assert any(sum(cut.clocks.values()) for cut, _ in cuts)
    for cut, weights in cuts:
        expected = torch.zeros(2, most)
        for worker, clock in cut.clocks.items():
            expected[worker, :clock] = 1.0
        assert torch.equal(weights, expected.expand(columns, 2, most)), cut
        assert cut.version == sum(cut.clocks.values())
