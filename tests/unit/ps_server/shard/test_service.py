"""A shard's calls: what is brought for one job holds up no other."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ps_server.shard.service import ShardService
from ps_server.shard.shard import Shard
from ps_server.shard.state import snapshots
from ps_wire.snapshot.manifest import MANIFEST
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import shard_pb2 as pb
from tests.until import LIMIT_S

THREADS = 2  # of the loop


async def test_manifests_that_wait_to_be_read_hold_no_thread_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is read at a time, for seconds; joins and clipped steps of other jobs need the loop's threads."""
    loop, said, reading = asyncio.get_running_loop(), asyncio.Semaphore(0), asyncio.Event()
    go_on, at_once = threading.Event(), threading.Semaphore()

    def parse(*_: object) -> None:
        assert at_once.acquire(blocking=False), "two are read at once"
        loop.call_soon_threadsafe(reading.set)
        assert go_on.wait(LIMIT_S)
        at_once.release()

    monkeypatch.setattr(snapshots, "parse", parse)
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    store = SnapshotStore(str(tmp_path))
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None, store=store)
    service = ShardService(shard, carriers=())

    async def file(number: int) -> AsyncIterator[pb.SnapshotChunk]:
        digest = hashlib.sha256(b"x").hexdigest()
        of_file = pb.SnapshotFile(job="a", snapshot=f"0000000{number}-aaaaaaaa", name=MANIFEST, sha256=digest)
        yield pb.SnapshotChunk(file=of_file)
        yield pb.SnapshotChunk(data=b"x")
        said.release()

    context: Any = None
    calls = [asyncio.create_task(service.PutSnapshot(file(number), context)) for number in range(THREADS + 1)]
    try:
        async with asyncio.timeout(LIMIT_S):
            for _ in calls:
                await said.acquire()
            await reading.wait()
            assert await asyncio.to_thread(lambda: "another job") == "another job"
    finally:
        go_on.set()
    await asyncio.gather(*calls)
