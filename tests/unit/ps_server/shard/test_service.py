"""A shard's calls: what is brought for one job holds up no other."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ps_server.shard import service as service_module
from ps_server.shard.service import ShardService
from ps_server.shard.shard import Shard
from ps_server.shard.state import snapshots
from ps_wire.errors import PayloadMismatch
from ps_wire.snapshot.manifest import MANIFEST
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import shard_pb2 as pb
from tests.unit.ps_server.desk import table
from tests.unit.ps_server.shard.admitted import shard_with
from tests.until import LIMIT_S

THREADS = 2  # of the loop
FILES = snapshots.MAX_ARRIVING
CONTEXT: Any = None


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return Shard(index=0, num_shards=1, memory_limit_bytes=None, store=SnapshotStore(str(tmp_path)))


async def test_manifests_that_wait_to_be_read_hold_up_no_other_job(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is read at a time, for seconds; another job waits for one of each job at most."""
    loop, reading = asyncio.get_running_loop(), asyncio.Event()
    go_on, at_once, order = threading.Event(), threading.Semaphore(), []
    given = asyncio.Semaphore(0)

    class Manifests(ThreadPoolExecutor):
        def submit(self, *what: Any, **options: Any) -> Future[Any]:
            future = super().submit(*what, **options)
            loop.call_soon_threadsafe(given.release)
            return future

    def parse(_data: bytes, _name: str, job: str) -> None:
        assert at_once.acquire(blocking=False), "two are read at once"
        order.append(job)
        loop.call_soon_threadsafe(reading.set)
        assert go_on.wait(LIMIT_S)
        at_once.release()

    monkeypatch.setattr(snapshots, "parse", parse)
    monkeypatch.setattr(service_module, "ThreadPoolExecutor", Manifests)
    service = ShardService(shard, carriers=())
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    calls = [asyncio.create_task(service.PutSnapshot(_file(it, MANIFEST), CONTEXT)) for it in range(FILES)]
    try:
        async with asyncio.timeout(LIMIT_S):
            await reading.wait()
            await given.acquire()
            assert await asyncio.to_thread(lambda: "another job") == "another job"
            await service.PutSnapshot(_file(1, "shard-0-of-1.safetensors", "b"), CONTEXT)
            calls.append(asyncio.create_task(service.PutSnapshot(_file(1, MANIFEST, "b"), CONTEXT)))
            await given.acquire()  # that of job b, the second
    finally:
        go_on.set()
    await asyncio.gather(*calls)
    assert order[:2] == ["a", "b"]


async def _file(number: int, name: str, job: str = "a") -> AsyncIterator[pb.SnapshotChunk]:
    digest = hashlib.sha256(b"x").hexdigest()
    of_file = pb.SnapshotFile(job=job, snapshot=f"{number:08}-aaaaaaaa", name=name, sha256=digest)
    yield pb.SnapshotChunk(file=of_file)
    yield pb.SnapshotChunk(data=b"x")


async def test_a_message_of_optimizer_state_with_too_many_tensors_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes two bytes on its way, and eighty here."""
    monkeypatch.setattr(service_module, "MAX_TENSORS", 3)
    shard = shard_with()
    shard.open_table("j", table())
    key = pb.TableKey(job="j", worker=0, incarnation=1)

    async def load(count: int) -> AsyncIterator[pb.PartitionState]:
        yield pb.PartitionState(key=key, tensors=[pb.StateTensor(name="x")] * count)

    service = ShardService(shard, carriers=())
    with pytest.raises(PayloadMismatch, match="a message has 4 tensors, at most 3"):
        await service.LoadState(load(4), CONTEXT)
    with pytest.raises(PayloadMismatch, match="the state has no 'x'"):
        await service.LoadState(load(3), CONTEXT)
