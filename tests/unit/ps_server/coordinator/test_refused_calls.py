"""Calls that one job has refused again and again: a server's log has a few lines of them, and a count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ps_server.coordinator.coordinator import Coordinator
from ps_server.coordinator.snapshots.saved_jobs import SavedJobs
from ps_server.rpc import complaints
from ps_server.rpc.complaints import MAX_LINES, Complaints
from ps_server.shard.shard import Shard
from ps_wire.errors import MemoryLimitExceeded, PsError
from ps_wire.frames.frame import PROTOCOL
from ps_wire.snapshot.manifest import MANIFEST
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from tests.unit.ps_server.desk import table
from tests.unit.ps_server.fleets import fleet_of
from tests.unit.ps_server.shard.admitted import shard_with
from tests.until import LIMIT_S

CALLS = 5 * MAX_LINES


@pytest.fixture(autouse=True)
def _one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls of a test are made in it, however busy the machine is."""
    monkeypatch.setattr(complaints, "WINDOW_S", LIMIT_S)


async def _worker() -> AsyncIterator[pb.MemberRequest]:
    wanted = spec_pb2.Job(name="a", consistency="bsp", num_workers=2)
    yield pb.MemberRequest(join=pb.Join(protocol=PROTOCOL, job=wanted, host="h", pid=1, lease_s=LIMIT_S))
    await asyncio.Event().wait()


async def test_snapshots_of_a_job_that_has_none_to_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = fleet_of(Shard(index=0, num_shards=1, memory_limit_bytes=None), asyncio.get_running_loop())
    coordinator = Coordinator(fleet, store=SnapshotStore(str(tmp_path)))
    context: Any = None
    joined = coordinator.service.Member(_worker(), context)
    assert (await anext(aiter(joined))).HasField("joined")
    for _ in range(CALLS):
        with pytest.raises(PsError):
            async for _ in coordinator.service.Snapshot(pb.SnapshotRequest(job="a"), context):
                pass
    assert len([line for line in caplog.messages if "NO SNAPSHOT" in line]) == MAX_LINES
    coordinator.stop()


def test_snapshots_that_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SnapshotStore(str(tmp_path))
    for name in ("00000001-aaaaaaaa", "00000002-aaaaaaaa"):
        writing = store.begin("a", name, MANIFEST)
        writing.write(b"{")
        writing.finish()
    saved = SavedJobs(store, Complaints())
    for _ in range(CALLS):
        assert not list(saved.saved("a"))
    assert len(caplog.messages) == MAX_LINES


def test_tables_that_do_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    shard = shard_with(1)
    caplog.clear()
    for _ in range(CALLS):
        with pytest.raises(MemoryLimitExceeded):
            shard.open_table("j", table())
    assert len(caplog.messages) == MAX_LINES
