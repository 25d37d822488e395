"""What a worker says over its stream is bounded where it comes in: it is kept, and others are told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ps_server.coordinator import member_streams
from ps_server.coordinator.coordinator import Coordinator
from ps_server.coordinator.said import MAX_PAIRS, check_counts, check_pairs, check_size, steps_by_table
from ps_server.rpc.errors import MAX_REQUEST_BYTES
from ps_server.shard.shard import Shard
from ps_wire.errors import FrameMalformed, FrameTooLarge, ParameterUnsupported, UsageError
from ps_wire.frames.frame import PROTOCOL
from ps_wire.snapshot.json_fields import MAX_COUNT
from ps_wire.spec.table import MAX_PARAMETERS, MAX_TABLES
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
    fits = pb.Progress(waits="x" * (MAX_REQUEST_BYTES - 10))
    check_size(pb.MemberRequest(heartbeat=pb.Heartbeat(progress=pb.Progress(waits="x" * 10_000))))
    check_size(fits)
    with pytest.raises(FrameTooLarge, match=f"at most {MAX_REQUEST_BYTES}"):
        check_size(pb.MemberRequest(heartbeat=pb.Heartbeat(progress=fits)))


NOWHERE = {MAX_TABLES: 1}


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"leave": pb.Leave(clocks=NOWHERE)}, "FrameMalformed"),
        ({"cut_ready": pb.CutReady(number=1, steps=NOWHERE)}, "FrameMalformed"),
        ({"holding": pb.Holding(number=1, steps=NOWHERE)}, "FrameMalformed"),
        ({"leave": pb.Leave(reason="x" * (MAX_REQUEST_BYTES + 1))}, "FrameTooLarge"),
    ],
    ids=["leave", "cut_ready", "holding", "large"],
)
async def test_a_worker_that_says_more_is_refused(said: dict[str, object], error: str) -> None:
    """Megabytes of it would be kept of each worker, or passed on to each of the others."""
    assert (await _refused(said)).error == error


async def _refused(said: dict[str, object]) -> pb.Refused:
    """The last word to a worker that says this."""
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
    coordinator = Coordinator(fleet_of(shard, asyncio.get_running_loop()))

    async def worker() -> AsyncIterator[pb.MemberRequest]:
        wanted = spec_pb2.Job(name="a", consistency="bsp", num_workers=2)
        yield pb.MemberRequest(join=pb.Join(protocol=PROTOCOL, job=wanted, host="h", pid=1, lease_s=LIMIT_S))
        yield pb.MemberRequest(number=1, **said)  # type: ignore[arg-type]

    async with asyncio.timeout(LIMIT_S):
        replies = [reply async for reply in coordinator.service.Member(worker(), None)]  # type: ignore[arg-type]
    coordinator.stop()
    return replies[-1].refused


MANY = MAX_PARAMETERS + 1
GROUPS = spec_pb2.Hyperparameters(groups=[spec_pb2.Group()] * MANY)
PAIRS = spec_pb2.Group(hyperparameters=[spec_pb2.Hyperparameter()] * MAX_PAIRS)


def check_all(table: spec_pb2.Table) -> None:
    check_counts(table)
    check_pairs(table)


@pytest.mark.parametrize(
    "table",
    [
        spec_pb2.Table(parameters=[spec_pb2.Parameter()] * MANY),
        spec_pb2.Table(stages=[0] * MANY),
        spec_pb2.Table(optimizer=spec_pb2.Optimizer(hyperparameters=GROUPS)),
        spec_pb2.Table(
            optimizer=spec_pb2.Optimizer(
                hyperparameters=spec_pb2.Hyperparameters(groups=[PAIRS, spec_pb2.Group(hyperparameters=[{}])])
            )
        ),
    ],
    ids=["parameters", "stages", "groups", "hyperparameters"],
)
async def test_a_table_with_too_many_of_anything_does_not_wait_to_be_read(
    table: spec_pb2.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of each of a job's workers may wait. Hyper-parameters alone are counted as it is read."""
    with pytest.raises((ParameterUnsupported, UsageError)):
        check_all(table)
    if not any(group.hyperparameters for group in table.optimizer.hyperparameters.groups):
        monkeypatch.setattr(member_streams, "_table_of", lambda *_: pytest.fail("it has waited"))
    assert (await _refused({"make_table": pb.MakeTable(table=table)})).error in (
        "ParameterUnsupported",
        "UsageError",
    )
