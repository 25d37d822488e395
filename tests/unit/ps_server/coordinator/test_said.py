"""What a worker says over its stream is bounded where it comes in: it is kept, and others are told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ps_server.coordinator.coordinator import Coordinator
from ps_server.coordinator.said import MAX_SAID_BYTES, check_size, steps_by_table
from ps_server.shard.shard import Shard
from ps_wire.errors import FrameMalformed, FrameTooLarge
from ps_wire.frames.frame import PROTOCOL
from ps_wire.snapshot.json_fields import MAX_COUNT
from ps_wire.spec.table import MAX_TABLES
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from tests.unit.ps_server.fleets import fleet_of
from tests.until import LIMIT_S


def test_steps_are_of_tables_that_there_can_be() -> None:
    every = dict.fromkeys(range(MAX_TABLES), MAX_COUNT)
    assert steps_by_table(every) == every
    for wrong in ({MAX_TABLES: 1}, {0: MAX_COUNT + 1}):
        with pytest.raises(FrameMalformed):
            steps_by_table(wrong)


def test_only_tables_are_large() -> None:
    fits = pb.Progress(waits="x" * (MAX_SAID_BYTES - 10))
    check_size(pb.MemberRequest(heartbeat=pb.Heartbeat(progress=pb.Progress(waits="x" * 10_000))))
    check_size(fits)
    with pytest.raises(FrameTooLarge, match=f"at most {MAX_SAID_BYTES}"):
        check_size(pb.MemberRequest(heartbeat=pb.Heartbeat(progress=fits)))


NOWHERE = {MAX_TABLES: 1}


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"leave": pb.Leave(clocks=NOWHERE)}, "FrameMalformed"),
        ({"cut_ready": pb.CutReady(number=1, steps=NOWHERE)}, "FrameMalformed"),
        ({"holding": pb.Holding(number=1, steps=NOWHERE)}, "FrameMalformed"),
        ({"leave": pb.Leave(reason="x" * (MAX_SAID_BYTES + 1))}, "FrameTooLarge"),
    ],
    ids=["leave", "cut_ready", "holding", "large"],
)
async def test_a_worker_that_says_more_is_refused(said: dict[str, object], error: str) -> None:
    """Megabytes of it would be kept of each worker, or passed on to each of the others."""
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
    coordinator = Coordinator(fleet_of(shard, asyncio.get_running_loop()))

    async def worker() -> AsyncIterator[pb.MemberRequest]:
        wanted = spec_pb2.Job(name="a", consistency="bsp", num_workers=2)
        yield pb.MemberRequest(join=pb.Join(protocol=PROTOCOL, job=wanted, host="h", pid=1, lease_s=LIMIT_S))
        yield pb.MemberRequest(number=1, **said)  # type: ignore[arg-type]

    async with asyncio.timeout(LIMIT_S):
        replies = [reply async for reply in coordinator.service.Member(worker(), None)]  # type: ignore[arg-type]
    assert replies[-1].refused.error == error
    coordinator.stop()


async def test_a_reader_that_says_more_is_heard_no_more() -> None:
    """Four of its messages may wait, of each reader."""
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
    coordinator = Coordinator(fleet_of(shard, asyncio.get_running_loop()))

    async def reader() -> AsyncIterator[pb.ReadRequest]:
        yield pb.ReadRequest(join=pb.ReadJoin(protocol=PROTOCOL, job="a", host="x" * (MAX_SAID_BYTES + 1)))
        await asyncio.Event().wait()

    async with asyncio.timeout(LIMIT_S):
        replies = [reply async for reply in coordinator.service.Read(reader(), None)]  # type: ignore[arg-type]
    assert [reply.refused.message for reply in replies] == ["a reader's stream starts with a join"]
    coordinator.stop()
