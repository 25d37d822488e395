"""Replies about workers fit into a message, however many workers one job has, and say all while they do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ps_server.coordinator.coordinator import Coordinator
from ps_server.rpc import reply_size
from ps_server.rpc.reply_size import cut
from ps_server.shard.service import ShardService
from ps_wire.frames.frame import PROTOCOL
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from tests.unit.ps_server.desk import table
from tests.unit.ps_server.fleets import fleet_of
from tests.unit.ps_server.shard.admitted import shard_with
from tests.until import LIMIT_S

MOST_BYTES = 10_000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_size, "MAX_ENTRIES_BYTES", MOST_BYTES)


def job(num_workers: int, host: str = "h" * 50) -> pb.JobStatus:
    return pb.JobStatus(
        state="running", workers=[pb.WorkerStatus(worker=it, host=host) for it in range(num_workers)]
    )


def test_one_job_of_many_workers_leaves_the_others_whole() -> None:
    """The first of its workers are there."""
    jobs = [job(2), job(5000), job(3), pb.JobStatus(state="asleep")]
    cut(jobs)
    assert [len(it.workers) for it in jobs if len(it.workers) < 10] == [2, 3, 0]
    kept = [it.worker for it in jobs[1].workers]
    assert kept == [*range(len(kept))]
    assert MOST_BYTES // 5 < jobs[1].ByteSize() <= MOST_BYTES // 4
    assert sum(it.ByteSize() for it in jobs) <= MOST_BYTES


def test_what_fits_is_said() -> None:
    jobs = [job(1), job(100)]
    cut(jobs)
    assert [len(it.workers) for it in jobs] == [1, 100]
    cut([])


def test_what_no_worker_less_makes_small_is_left() -> None:
    jobs = [pb.JobStatus(state="x" * 2 * MOST_BYTES, workers=[pb.WorkerStatus(worker=1)])]
    cut(jobs)
    assert not jobs[0].workers


async def test_status_and_tables_of_a_job_of_many_workers_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are answered, whoever asks: a message that is too large is answered by an error alone."""
    shard, context = shard_with(num_workers=200), None
    shard.open_table("j", table())
    coordinator, jobs = Coordinator(fleet_of(shard, asyncio.get_running_loop())), []

    async def worker() -> Any:
        wanted = spec_pb2.Job(name="a", consistency="bsp", num_workers=200)
        join = pb.Join(protocol=PROTOCOL, job=wanted, host="h" * 255, pid=1, lease_s=LIMIT_S)
        yield pb.MemberRequest(join=join)
        await asyncio.Event().wait()

    for _ in range(60):
        jobs.append(coordinator.service.Member(worker(), context))  # type: ignore[arg-type]
        assert (await anext(aiter(jobs[-1]))).HasField("joined")
    (status,) = (await coordinator.service.Status(pb.StatusRequest(), context)).jobs  # type: ignore[arg-type]
    monkeypatch.setattr(reply_size, "MAX_ENTRIES_BYTES", 1000)
    (figures,) = ShardService(shard, carriers=()).figures().tables
    assert 0 < len(status.workers) < 60
    assert 0 < len(figures.workers) < 200
    coordinator.stop()
