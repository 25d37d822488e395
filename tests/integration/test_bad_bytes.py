"""Bytes that are no frames, and frames that do not fit: the connection ends or the frame is refused.

In each test a worker of another job trains on the same shards all the while.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator

import grpc
import pytest
import torch

import ps_worker as ps
from ps_wire import errors
from ps_wire.access.channel import MAX_MESSAGE_BYTES
from ps_wire.frames import frame as wire
from ps_wire.frames.frame import HEADER_BYTES, MAX_PAYLOAD_BYTES, Frame, Kind
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub

from .processes import LIMIT_S
from .raw import DataStream, RawWorker, refused_join
from .servers import SERVING, Servers, fresh_job, health
from .team import join

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def bystander(cluster: Servers) -> Iterator[None]:
    """A worker whose job goes on before, during and after the test."""
    with join(cluster, fresh_job(), consistency="bsp") as worker:
        table = worker.table({"w": torch.zeros(6000)}, optimizer=ps.SGD(lr=1.0))
        for _ in range(2):
            table.push({"w": -torch.ones(6000)}).result(LIMIT_S)
        yield
        table.push({"w": -torch.ones(6000)}).result(LIMIT_S)
        assert (table.pull().result(LIMIT_S).values["w"] == 3).all()
        worker.finish()
    assert [health(address) for address in cluster.addresses] == [SERVING, SERVING]


def header(**fields: int) -> bytes:
    """A valid header but for these: (offset, format, value)."""
    data = bytearray(wire.encode(Frame(kind=Kind.PUSH)))
    places = {
        "magic": ("<I", 0),
        "protocol": ("B", 4),
        "kind": ("B", 5),
        "payload": ("<I", 56),
        "meta": ("<I", 60),
    }
    for name, value in fields.items():
        form, offset = places[name]
        struct.pack_into(form, data, offset, value)
    return bytes(data)


BAD = {
    "random bytes": (random.Random(1).randbytes(5000), errors.FrameMalformed, "not a frame: magic"),
    "few random bytes": (random.Random(2).randbytes(17), errors.FrameMalformed, "at least 64 bytes, got 17"),
    "no byte": (b"", errors.FrameMalformed, "at least 64 bytes, got 0"),
    "truncated": (
        wire.encode(Frame(kind=Kind.PUSH, payload=bytes(4096)))[:-1000],
        errors.FrameMalformed,
        f"announces {HEADER_BYTES + 4096} bytes in all and has {HEADER_BYTES + 3096}",
    ),
    "cut in the header": (header()[:40], errors.FrameMalformed, "at least 64 bytes, got 40"),
    "too long": (header() + b"x", errors.FrameMalformed, "announces 64 bytes in all and has 65"),
    "huge payload": (
        header(payload=0xFFFFFFFF),
        errors.FrameTooLarge,
        f"announces {0xFFFFFFFF} bytes of payload",
    ),
    "huge meta": (header(meta=0xFFFFFFFF), errors.FrameTooLarge, f"{0xFFFFFFFF} of meta"),
    "one over": (header(payload=MAX_PAYLOAD_BYTES + 1), errors.FrameTooLarge, "at most"),
    "unknown kind": (header(kind=99), errors.FrameMalformed, "unknown kind of frame 99"),
    "another protocol": (
        header(protocol=1),
        errors.ProtocolMismatch,
        f"speaks protocol 1, this one {wire.PROTOCOL}",
    ),
    "no hello": (header(), errors.StrangerRefused, "starts with HELLO, not PUSH"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("shard", [0, 1])
def test_a_stranger_with_bad_bytes_is_told_why_and_cut_off(cluster: Servers, shard: int, name: str) -> None:
    """The error names what is wrong, the connection is closed, a counter grows, the shard serves on."""
    message, error, text = BAD[name]
    before = cluster.refused_frames(shard)
    with DataStream(cluster.addresses[shard]) as stream:
        stream.send(message)
        refusal = stream.refusal()
        assert type(refusal) is error
        assert text in refusal.message
        assert stream.is_closed()
    assert cluster.refused_frames(shard) == before + 1


def test_a_stranger_without_a_token_of_its_own_is_cut_off(cluster: Servers) -> None:
    """A HELLO needs a token that was given to this worker, and each token is good once."""
    with RawWorker(cluster) as worker:
        used = worker.hello(0)
        with DataStream(cluster.addresses[0]) as first:
            first.send(used)
            assert first.receive().kind is Kind.HELLO
        for hello, text in (
            (used, "is used up"),
            (worker.hello(1), "was not given to it"),  # the other shard's
            (worker.hello(0, incarnation=2), "was not given to it"),
            (worker.hello(0, worker=5), "was not given to it"),
            (worker.hello(0, meta=bytes(16) + b"no-such-job"), "was not given to it"),
        ):
            before = cluster.refused_frames(0)
            with DataStream(cluster.addresses[0]) as stream:
                stream.send(hello)
                assert text in stream.refusal().message
                assert stream.is_closed()
            assert cluster.refused_frames(0) == before + 1


def test_a_frame_that_does_not_fit_is_refused_and_the_next_is_taken(cluster: Servers) -> None:
    """A push of a wrong size, partition, table, codec, weight or worker changes nothing but a counter."""
    with RawWorker(cluster) as worker:
        stream, partition = worker.streams[1], next(worker.partitions(shard=1))
        other = next(worker.partitions(shard=0))
        size = 4 * partition.numel
        wrong: list[tuple[bytes, type[errors.PsError], str]] = [
            (
                worker.push(partition, 0, payload=bytes(size + 4)),
                errors.PayloadMismatch,
                f"takes {size} bytes of float32 (codec 0), got {size + 4} bytes",
            ),
            (worker.push(partition, 0, payload=bytes(3)), errors.PayloadMismatch, "got 3 bytes"),
            (worker.push(partition, 0, codec=7), errors.PayloadMismatch, "codec 7"),
            (
                worker.push(other, 0),
                errors.PayloadMismatch,
                f"partition {other.index} of table 0 is not on this",
            ),
            (worker.push(partition, 0, table=9), errors.JobUnknown, "has no table 9"),
            (
                worker.push(partition, 0, weight=float("nan")),
                errors.PayloadMismatch,
                "finite and > 0, got nan",
            ),
            (worker.push(partition, 0, weight=-1.0), errors.PayloadMismatch, "finite and > 0, got -1"),
            (worker.push(partition, 0, hyper=3), errors.PayloadMismatch, "no hyper-parameters 3"),
            (
                worker.push(partition, 0, meta=bytes(2)),
                errors.FrameMalformed,
                "bitmap of 1 pieces has 1 bytes",
            ),
            (worker.push(partition, 0, worker=4), errors.StrangerRefused, "worker 0's, not 4's"),
            (worker.push(partition, 0, incarnation=9), errors.StaleIncarnation, "incarnation 1's, not 9's"),
            (worker.push(partition, 5), errors.PushOutOfOrder, "pushes step 5; its clock here is 0"),
            (
                worker.frame(Kind.LOAD, partition=partition.index, payload=bytes(4)),
                errors.PayloadMismatch,
                "got 4 bytes",
            ),
            (
                worker.frame(Kind.HYPER, hyper=1, meta=b"\xff\xff"),
                errors.FrameMalformed,
                "not a Hyperparameters",
            ),
            (worker.frame(Kind.PULL, meta=b"abc"), errors.FrameMalformed, "lists partitions, 4 bytes each"),
            (worker.frame(Kind.PULLED), errors.FrameMalformed, "PULLED frame does not go to a shard"),
        ]
        before = cluster.refused_frames(1)
        for message, error, text in wrong:
            stream.send(message)
            refusal = stream.refusal()
            assert type(refusal) is error, refusal
            assert text in refusal.message
        assert cluster.refused_frames(1) == before + len(wrong)
        stream.send(worker.push(partition, 0))
        assert stream.receive().kind is Kind.ACK
        assert worker.read(partition, 1) == {1.0}
        ledger = cluster.ledger(1, worker.job, 0)
        assert (ledger.received, ledger.applied, ledger.duplicates) == (1, 1, 0)


def test_a_message_over_the_limit_ends_only_its_own_stream(cluster: Servers) -> None:
    """More than 16 MiB in one message is not even received."""
    with DataStream(cluster.addresses[0]) as stream:
        stream.send(bytes(MAX_MESSAGE_BYTES + 1))
        with pytest.raises(grpc.RpcError) as refused:
            stream.receive()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_on_the_port_close_the_connection(cluster: Servers, seed: int) -> None:
    """A connection that does not speak HTTP/2 is closed; the server serves on."""
    for address in cluster.addresses:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
            connection.sendall(random.Random(seed).randbytes(4096))
            try:
                while connection.recv(4096):
                    pass
            except ConnectionResetError:
                pass
        assert health(address) == SERVING


@pytest.mark.parametrize("protocol", [0, 1, 99])
def test_a_join_of_another_protocol_names_both_versions(cluster: Servers, protocol: int) -> None:
    """JOIN carries the version; the refusal says which one came and which one is spoken."""
    job = spec_pb2.Job(name=fresh_job(), consistency="bsp", num_workers=1)
    error = refused_join(cluster.addresses[0], pb.MemberRequest(join=pb.Join(protocol=protocol, job=job)))
    assert type(error) is errors.ProtocolMismatch
    assert error.message.startswith(f"the other end speaks protocol {protocol}, this one {wire.PROTOCOL}")


def test_a_members_stream_that_makes_no_sense_is_refused(cluster: Servers) -> None:
    """No join first, a job name that is none, no worker at all: each is named."""
    for request, text in (
        (pb.MemberRequest(heartbeat=pb.Heartbeat(heard=1)), "starts with a join"),
        (pb.MemberRequest(), "starts with a join"),
        (join_of(name="a b", consistency="bsp", num_workers=1), "job name 'a b'"),
        (join_of(name="x", consistency="bps", num_workers=1), "unknown consistency 'bps'; valid are"),
        (join_of(name="x", consistency="bsp", num_workers=0), "must be in 1..65536, got 0"),
    ):
        assert text in refused_join(cluster.addresses[0], request).message
    assert cluster.status("x") is None


def join_of(**job: object) -> pb.MemberRequest:
    return pb.MemberRequest(join=pb.Join(protocol=wire.PROTOCOL, job=spec_pb2.Job(**job)))


def test_state_of_a_stranger_is_neither_taken_nor_given(cluster: Servers) -> None:
    """PutState and GetState are for members: a job or an incarnation that is none ends with NOT_FOUND."""
    key = pb.StateKey(job="no-such-job", worker=0, incarnation=1, name="final")
    with grpc.insecure_channel(cluster.addresses[0]) as channel:
        stub = CoordinatorStub(channel)
        for call in (
            lambda: stub.PutState(iter([pb.StateChunk(key=key)]), timeout=LIMIT_S),
            lambda: list(stub.GetState(pb.GetStateRequest(key=key), timeout=LIMIT_S)),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            assert "no job 'no-such-job' here" in refused.value.details()


def test_a_flood_of_strangers_leaves_room_for_workers(cluster: Servers) -> None:
    """Streams that say nothing are bounded; a worker that joins meanwhile is served."""
    silent = [DataStream(cluster.addresses[1]) for _ in range(64)]
    with RawWorker(cluster) as worker:
        partition = next(worker.partitions(shard=1))
        worker.streams[1].send(worker.push(partition, 0))
        assert worker.streams[1].receive().kind is Kind.ACK
    for stream in silent:
        stream.__exit__()
