"""What every data carrier owes (`ps_wire.carrier`): whole frames, in order, or a connection that is closed.

A carrier comes under test as a function in `CARRIERS` that opens a connection as a worker would.
"""

from __future__ import annotations

import queue
import struct
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import grpc
import pytest
import torch

import ps_worker as ps
from ps_server.session import Session
from ps_server.shard import TOKEN_BYTES, Shard
from ps_wire import frame as wire
from ps_wire.channel import CLIENT
from ps_wire.memory import MessageStream

from ..unit.ps_worker.service import Cluster, LoopThread, fresh_name, run_workers  # noqa: TID252

BIG = wire.MAX_PAYLOAD_BYTES // 4  # elements of the largest partition


class Client(Protocol):
    """The worker's end of one connection."""

    def send(self, message: bytes) -> None:
        """Sends bytes as one message."""
        ...

    def receive(self) -> bytes | None:
        """The next message; None once the other end has closed the connection."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


class GrpcClient:
    def __init__(self, address: str, _shard: Shard) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address, options=CLIENT)
        self._call = self._channel.stream_stream("/ps_wire.v1.Shard/Data")(iter(self._outbox.get, None))

    def send(self, message: bytes) -> None:
        self._outbox.put(message)

    def receive(self) -> bytes | None:
        return next(self._call, None)

    def close(self) -> None:
        self._outbox.put(None)
        self._call.cancel()
        self._channel.close()


class MemoryClient:
    def __init__(self, _address: str, shard: Shard) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stream = MessageStream(
            iter(self._outbox.get, None),
            lambda outlet: Session(shard, outlet, generation=1, token_bytes=TOKEN_BYTES),
        )

    def send(self, message: bytes) -> None:
        self._outbox.put(message)

    def receive(self) -> bytes | None:
        return next(self._stream, None)

    def close(self) -> None:
        self._outbox.put(None)
        self._stream.cancel()


CARRIERS: dict[str, Callable[[str, Shard], Client]] = {"grpc": GrpcClient, "memory": MemoryClient}


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    loop = LoopThread()
    made = Cluster(loop, 1)
    yield made
    made.close()
    loop.close()


class Bench:
    """A job with one big partition, and connections to its shard as its worker 0."""

    def __init__(self, server: Cluster, job: str, opens: Callable[[str, Shard], Client]) -> None:
        self.shard = server.shards[0].shard
        self.job = job
        self._address = server.servers
        self._opens = opens
        self.clients: list[Client] = []

    def connection(self) -> Client:
        client = self._opens(self._address, self.shard)
        self.clients.append(client)
        return client

    def hello(self, token: bytes | None = None) -> bytes:
        token = token or self.shard.make_token(self.job, 0, 1)
        frame = wire.Frame(kind=wire.Kind.HELLO, worker=0, incarnation=1, meta=token + self.job.encode())
        return wire.encode(frame)

    def ready(self) -> Client:
        client = self.connection()
        client.send(self.hello())
        assert self.next(client).kind is wire.Kind.HELLO
        return client

    @staticmethod
    def next(client: Client) -> wire.Frame:
        message = client.receive()
        assert message is not None
        return wire.decode(message)


@pytest.fixture(params=CARRIERS)
def in_job(request: Any, server: Cluster) -> Callable[[Callable[[Bench], None]], None]:
    """Runs a test while a worker holds the job open."""

    def run(test: Callable[[Bench], None]) -> None:
        job = fresh_name()

        def body(worker: ps.Worker) -> None:
            options = ps.BucketOptions(partition_bytes=wire.MAX_PAYLOAD_BYTES)
            worker.table({"w": torch.zeros(BIG)}, optimizer=ps.SGD(lr=1.0), buckets=options)
            bench = Bench(server, job, CARRIERS[request.param])
            try:
                test(bench)
            finally:
                for client in bench.clients:
                    client.close()

        run_workers(server, body, job=job, consistency="asp")

    return run


def push(step: int, value: float) -> bytes:
    payload = torch.full((BIG,), value).numpy().tobytes()
    frame = wire.Frame(kind=wire.Kind.PUSH, step=step, worker=0, incarnation=1, payload=payload)
    return wire.encode(frame)


def pull(step: int) -> bytes:
    meta = struct.pack("<I", 0)
    return wire.encode(wire.Frame(kind=wire.Kind.PULL, step=step, worker=0, incarnation=1, meta=meta))


def test_the_largest_frames_come_whole_and_in_order_both_ways(in_job: Any):
    def test(bench: Bench) -> None:
        client = bench.ready()
        for step in range(6):  # more than the other end takes at a time
            client.send(push(step, -1.0))
            client.send(pull(step + 1))
        for step in range(6):
            ack, pulled = bench.next(client), bench.next(client)
            assert (ack.kind, ack.step) == (wire.Kind.ACK, step)
            assert (pulled.kind, pulled.step, pulled.version) == (wire.Kind.PULLED, step + 1, step + 1)
            values = torch.frombuffer(bytearray(pulled.payload), dtype=torch.float32)
            assert torch.equal(values, torch.full((BIG,), step + 1.0))

    in_job(test)


def test_a_frame_before_hello_is_refused_and_the_connection_closed(in_job: Any):
    def test(bench: Bench) -> None:
        client = bench.connection()
        client.send(pull(0))
        assert bench.next(client).kind is wire.Kind.REFUSE
        assert client.receive() is None

    in_job(test)


def test_a_token_is_good_once(in_job: Any):
    def test(bench: Bench) -> None:
        hello = bench.hello()
        first, second = bench.connection(), bench.connection()
        first.send(hello)
        assert bench.next(first).kind is wire.Kind.HELLO
        second.send(hello)
        assert bench.next(second).kind is wire.Kind.REFUSE
        assert second.receive() is None
        first.send(pull(0))
        assert bench.next(first).kind is wire.Kind.PULLED

    in_job(test)


@pytest.mark.parametrize(
    "message",
    [b"\x00", bytes(64), b"GET / HTTP/1.1\r\n\r\n" * 9, push(0, 1.0)[:-1]],
    ids=["short", "zeros", "http", "truncated"],
)
def test_bytes_that_are_no_frame_close_the_connection_and_are_counted(in_job: Any, message: bytes):
    def test(bench: Bench) -> None:
        before = bench.shard.refused_frames
        for client in (bench.connection(), bench.ready()):
            client.send(message)
            assert bench.next(client).kind is wire.Kind.REFUSE
            assert client.receive() is None
        assert bench.shard.refused_frames == before + 2
        other = bench.ready()
        other.send(pull(0))
        assert bench.next(other).kind is wire.Kind.PULLED

    in_job(test)


def test_a_frame_that_does_not_fit_is_refused_and_the_connection_goes_on(in_job: Any):
    def test(bench: Bench) -> None:
        client = bench.ready()
        client.send(wire.encode(wire.Frame(kind=wire.Kind.PUSH, worker=0, incarnation=1, payload=b"1234")))
        assert bench.next(client).kind is wire.Kind.REFUSE
        client.send(push(0, 1.0))
        assert bench.next(client).kind is wire.Kind.ACK

    in_job(test)
