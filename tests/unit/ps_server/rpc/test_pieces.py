"""Large messages are parsed in pieces: what comes out is the same, and the loop turns in between."""

from __future__ import annotations

import asyncio
import random

import pytest
from google.protobuf.message import DecodeError

from ps_server.rpc import auth, pieces
from ps_wire.access.token import Caller
from ps_wire.errors import FrameTooLarge
from ps_wire.spec.table import MAX_PARAMETERS
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import shard_pb2, spec_pb2


def largest_table(groups: int = 0) -> bytes:
    """A request that makes a table of as many parameters as one may have."""
    parameters = [
        spec_pb2.Parameter(name=f"layers.{index}.weight", shape=[4, index + 1])
        for index in range(MAX_PARAMETERS)
    ]
    pairs = [spec_pb2.Hyperparameter(name=name) for name in ("lr", "momentum")]
    chosen = spec_pb2.Hyperparameters(groups=[spec_pb2.Group(hyperparameters=pairs)] * groups)
    table = spec_pb2.Table(
        number=3,
        parameters=parameters,
        stages=[index % 1024 for index in range(MAX_PARAMETERS)],
        optimizer=spec_pb2.Optimizer(name="sgd", hyperparameters=chosen),
    )
    return pb.MemberRequest(number=7, make_table=pb.MakeTable(table=table)).SerializeToString()


async def turns_beside(request: bytes) -> tuple[object, int]:
    """What is parsed, or why it is not, and how often the loop came round to somebody else meanwhile."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    try:
        return await pieces.parse(pb.MemberRequest.FromString, request), turns
    except FrameTooLarge as error:
        return error, turns
    finally:
        beside.cancel()


@pytest.mark.parametrize("groups", [0, MAX_PARAMETERS])
async def test_while_the_largest_table_is_parsed_the_loop_turns_for_every_piece(groups: int) -> None:
    request = largest_table(groups)
    parsed, turns = await turns_beside(request)
    assert parsed == pb.MemberRequest.FromString(request)
    assert turns >= len(request) // pieces.PIECE_BYTES // 2


async def test_millions_of_empty_entries_are_refused_and_the_loop_has_turned_meanwhile() -> None:
    """Parsed at once, 16 MiB of them held the loop for 1.4 s and took 640 MB."""
    entries = spec_pb2.Table(parameters=[spec_pb2.Parameter()]).SerializeToString() * (2 * pieces.MAX_FIELDS)
    inside = b"".join((tag_of(pb.MakeTable, "table"), varint(len(entries)), entries))
    request = b"".join((tag_of(pb.MemberRequest, "make_table"), varint(len(inside)), inside))
    refused, turns = await turns_beside(request)
    assert isinstance(refused, FrameTooLarge)
    assert f"more than {pieces.MAX_FIELDS} fields" in refused.message
    assert turns >= pieces.MAX_FIELDS * 2 // pieces.PIECE_BYTES


async def test_a_list_of_millions_of_numbers_is_refused() -> None:
    """It cannot be cut, and is parsed in one call."""
    table = spec_pb2.Table(stages=[0] * (pieces.MAX_PACKED_BYTES + 1))
    request = pb.MemberRequest(make_table=pb.MakeTable(table=table)).SerializeToString()
    refused, _ = await turns_beside(request)
    assert isinstance(refused, FrameTooLarge)
    assert "a list of numbers of 1048577 bytes" in refused.message


async def test_bytes_that_are_no_message_are_refused_wherever_they_end() -> None:
    request = largest_table()
    for end in (pieces.AT_ONCE_BYTES + 1, len(request) - 1):
        with pytest.raises(DecodeError):
            await pieces.parse(pb.MemberRequest.FromString, request[:end])
    draw = random.Random(5)
    for _ in range(20):
        mutated = bytearray(request)
        for _ in range(4):
            mutated[draw.randrange(len(mutated))] = draw.randrange(256)
        try:
            wanted = pb.MemberRequest.FromString(bytes(mutated))
        except DecodeError:
            with pytest.raises((DecodeError, FrameTooLarge)):
                await pieces.parse(pb.MemberRequest.FromString, bytes(mutated))
        else:
            assert await pieces.parse(pb.MemberRequest.FromString, bytes(mutated)) == wanted


async def test_data_of_megabytes_and_maps_come_out_as_they_were() -> None:
    taken = dict.fromkeys(range(200_000), 5)
    progress = pb.Progress(
        step=4, taken=taken, metrics={"x" * 100_000: 1.0, "loss": 2.0}, waits="y" * 100_000
    )
    message = pb.MemberRequest(heartbeat=pb.Heartbeat(heard=9, progress=progress))
    assert await pieces.parse(pb.MemberRequest.FromString, message.SerializeToString()) == message
    tensors = [
        shard_pb2.StateTensor(piece=piece, name="m", data=bytes([piece]) * 400_000) for piece in range(4)
    ]
    state = shard_pb2.PartitionState(partition=2, tensors=tensors, last=True)
    assert await pieces.parse(shard_pb2.PartitionState.FromString, state.SerializeToString()) == state


async def test_many_messages_of_one_job_take_turns_and_one_of_another_does_not_wait_for_them() -> None:
    """Else a job's thousand streams would hold the loop for a piece of each."""
    request = largest_table()
    order: list[str] = []

    async def parse(job: str) -> None:
        auth._caller.set(Caller(job=job))
        await pieces.parse(pb.MemberRequest.FromString, request)
        order.append(job)

    await asyncio.gather(*(parse("a") for _ in range(4)), parse("b"))
    assert order.index("b") <= 1, order


def varint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


def tag_of(kind: type, field: str) -> bytes:
    return varint(kind.DESCRIPTOR.fields_by_name[field].number << 3 | 2)  # type: ignore[attr-defined]
