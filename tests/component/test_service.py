"""The services that all tests here share."""

from __future__ import annotations

import pytest
import torch

import ps_worker as ps

from .service import Cluster, fresh_name, run_workers

BEFORE: list[str] = []  # jobs of tests of this file


def train(worker: ps.Worker) -> None:
    """One step: a job that has a state is kept when it has ended."""
    table = worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))
    table.push({"w": torch.ones(3)}).result()
    worker.finish()


@pytest.mark.parametrize("time", [1, 2])
def test_the_jobs_of_a_test_go_with_it(one_shard: Cluster, cluster: Cluster, time: int) -> None:
    """Whichever of the two comes first."""
    for service in (one_shard, cluster):
        assert not set(BEFORE) & set(service.coordinator.runners), time
        job = fresh_name()
        run_workers(service, train, job=job)
        assert job in service.coordinator.runners
        BEFORE.append(job)


def test_a_job_in_which_workers_live_stays(one_shard: Cluster) -> None:
    """Who trains in a thread that outlives its test is told nothing: nobody would hear its error."""
    job, ended = fresh_name(), fresh_name()
    with one_shard.dropping():
        run_workers(one_shard, train, job=ended)
        worker = ps.connect(servers=one_shard.servers, job=job)
        worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))
    assert {job, ended} & set(one_shard.coordinator.runners) == {job}
    worker.finish()
    worker.leave()
