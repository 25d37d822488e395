"""What takes long of what one job asks the coordinator for: the others hear nothing of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ps_server.coordinator import member_streams
from ps_server.coordinator.coordinator import Coordinator
from ps_server.coordinator.snapshots.saved_jobs import SavedJobs
from ps_server.rpc.complaints import Complaints
from ps_server.shard.shard import Shard
from ps_wire.errors import SnapshotMissing
from ps_wire.frames.frame import PROTOCOL
from ps_wire.frames.messages import table_from_proto, table_to_proto
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from tests.unit.ps_server.desk import table
from tests.unit.ps_server.fleets import fleet_of
from tests.until import LIMIT_S

THREADS = 2  # of the loop
WORKERS = 40  # more than there are threads for orders


class Held:
    """Work of job `a` that does not end before `go_on`; that of others does. One at a time, or it fails."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.begun = asyncio.Event()
        self.go_on = threading.Event()
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._one = threading.Semaphore()

    def __call__(self, given: Any) -> Any:
        if getattr(given, "clip_grad_norm", 0.0) or given == "a":
            assert self._one.acquire(blocking=False), "two of one job are under way"
            self._loop.call_soon_threadsafe(self.begun.set)
            assert self.go_on.wait(LIMIT_S)
            self._one.release()
        return self._work(given)


async def worker(job: str, number: int, num_workers: int, message: spec_pb2.Table) -> AsyncIterator[Any]:
    wanted = spec_pb2.Job(name=job, consistency="bsp", num_workers=num_workers)
    join = pb.Join(protocol=PROTOCOL, job=wanted, worker=number, host="h", pid=1, lease_s=LIMIT_S)
    yield pb.MemberRequest(join=join)
    yield pb.MemberRequest(number=1, make_table=pb.MakeTable(table=message))
    await asyncio.Event().wait()


async def test_tables_that_one_job_makes_hold_up_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes seconds where it has many parameters, and a job may have thousands of workers."""
    loop, held = asyncio.get_running_loop(), Held(table_from_proto)
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    monkeypatch.setattr(member_streams, "table_from_proto", held)
    coordinator = Coordinator(fleet_of(Shard(index=0, num_shards=1, memory_limit_bytes=None), loop))
    slow, quick = table_to_proto(table()), table_to_proto(table())
    slow.clip_grad_norm = 1.0

    async def until(stream: AsyncIterator[Any], kind: str) -> None:
        async for reply in coordinator.service.Member(stream, None):  # type: ignore[arg-type]
            assert not reply.HasField("refused"), reply
            if reply.WhichOneof("kind") == kind:
                return

    tasks = [
        asyncio.create_task(until(worker("a", it, WORKERS, slow), "table_made")) for it in range(WORKERS)
    ]
    try:
        async with asyncio.timeout(LIMIT_S):
            await held.begun.wait()
            await until(worker("b", 0, 1, quick), "table_made")
            assert await asyncio.to_thread(lambda: "another job") == "another job"
            held.go_on.set()
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        held.go_on.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        coordinator.stop()


async def test_names_of_snapshots_that_one_job_asks_for_hold_up_no_other_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder may lie on a disk that does not answer."""
    loop, store = asyncio.get_running_loop(), SnapshotStore(str(tmp_path))
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    held = Held(store.name_to_bring)
    monkeypatch.setattr(store, "name_to_bring", held)
    fleet = fleet_of(Shard(index=0, num_shards=1, memory_limit_bytes=None), loop)
    coordinator = Coordinator(fleet, store=store)
    context: Any = None

    async def name(job: str) -> str:
        asked = pb.SnapshotRequest(job=job)
        return (await coordinator.service.NameSnapshot(asked, context)).snapshot

    await _asked_often(name, held)
    coordinator.stop()


async def test_snapshots_that_one_job_looks_for_hold_up_no_other_job(tmp_path: Path) -> None:
    """Who names one that is not the newest has all that cannot be used looked at, as often as it asks."""
    loop, saved = asyncio.get_running_loop(), SavedJobs(SnapshotStore(str(tmp_path)), Complaints())
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    held = Held(lambda job: next(saved.saved(job), None))
    jobs = SimpleNamespace(saved=lambda job: (held(job) for _ in range(1)))
    fleet = fleet_of(Shard(index=0, num_shards=1, memory_limit_bytes=None), loop)
    coordinator = Coordinator(fleet, jobs)  # type: ignore[arg-type]
    context: Any = None

    async def go_back(job: str) -> str:
        with pytest.raises(SnapshotMissing) as refused:
            await coordinator.service.Restore(pb.RestoreRequest(job=job, snapshot="none"), context)
        return refused.value.message

    await _asked_often(go_back, held)
    coordinator.stop()


async def _asked_often(ask: Callable[[str], Awaitable[str]], held: Held) -> None:
    """By job `a`, whose first answer is held back; `b` gets its own."""
    tasks = [asyncio.ensure_future(ask("a")) for _ in range(WORKERS)]
    try:
        async with asyncio.timeout(LIMIT_S):
            await held.begun.wait()
            assert await ask("b")
            assert await asyncio.to_thread(lambda: "another job") == "another job"
    finally:
        held.go_on.set()
        await asyncio.gather(*tasks)
