"""A job with one big partition, and connections to its shard that a test speaks over, on each carrier."""

from __future__ import annotations

import queue
import socket
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import grpc
import torch

import ps_worker as ps
from ps_server.shard.connection_tokens import TOKEN_BYTES
from ps_server.shard.shard import Shard
from ps_server.shard.transport.memory_stream import MessageStream
from ps_server.shard.transport.session import Session
from ps_wire.access.certificates import TlsFolder
from ps_wire.access.channel import CLIENT
from ps_wire.errors import PsError
from ps_wire.frames import frame as wire
from ps_wire.sockets import tls_socket
from ps_wire.sockets.shared_memory import AVAILABLE
from ps_worker.transport.connection import refusal
from ps_worker.transport.socket_stream import DOORS
from tests.component.service import Cluster, fresh_name, run_workers
from tests.until import LIMIT_S

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


# What HTTP/2 takes ahead of who reads is fixed: else it grows to 6 MB, from 2, as a connection seems fast.
FIXED_WINDOW = [("grpc.http2.bdp_probe", 0)]


class GrpcClient:
    def __init__(self, server: Cluster) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(server.servers, options=CLIENT + FIXED_WINDOW)
        self._call = self._channel.stream_stream("/ps_wire.v1.Shard/Data")(iter(self._outbox.get, None))

    def send(self, message: bytes) -> None:
        self._outbox.put(message)

    def receive(self) -> bytes | None:
        try:
            return next(self._call, None)
        except grpc.RpcError:
            return None

    def close(self) -> None:
        self._outbox.put(None)
        self._call.cancel()
        self._channel.close()


class MemoryClient:
    def __init__(self, server: Cluster) -> None:
        shard: Shard = server.shards[0].shard
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stream = MessageStream(
            iter(self._outbox.get, None),
            lambda outlet: Session(shard, outlet, token_bytes=TOKEN_BYTES),
        )

    def send(self, message: bytes) -> None:
        self._outbox.put(message)

    def receive(self) -> bytes | None:
        return next(self._stream, None)

    def close(self) -> None:
        self._outbox.put(None)
        self._stream.cancel()


class SocketClient:
    """Of a carrier that is a stream of bytes; `receive` cuts it into messages."""

    carrier = ""
    hello_flags = 0

    def __init__(self, server: Cluster) -> None:
        offers = server.shards[0]._service.carriers
        (address,) = [offer.address for offer in offers if offer.name == self.carrier]
        self.socket = DOORS[self.carrier](address, server.servers, LIMIT_S)

    def send(self, message: bytes) -> None:
        self.socket.sendall(message)

    def receive(self) -> bytes | None:
        head = self._read(wire.HEADER_BYTES)
        if not head:
            return None
        header = wire.Header(head)
        return head + self._read(header.padded_meta_bytes + header.payload_bytes)

    def _read(self, count: int) -> bytes:
        data = bytearray()
        try:
            while len(data) < count and (part := self.socket.recv(count - len(data))):
                data += part
        except ConnectionError:
            return b""
        return bytes(data)

    def close(self) -> None:
        self.socket.close()


class UnixClient(SocketClient):
    carrier = "uds"


class SharedClient(SocketClient):
    """`shm`, of which no table's memory is shared yet: payloads travel."""

    carrier = "shm"
    hello_flags = wire.SHARED


class TcpClient(SocketClient):
    carrier = "tcp"


@cache
def worker_certificates(path: Path) -> TlsFolder:
    return TlsFolder(path, serves=False, complain=print)


class TlsClient(SocketClient):
    """`tcp` where the server has certificates."""

    carrier = "tcp"

    def __init__(self, server: Cluster) -> None:
        offers = server.shards[0]._service.carriers
        (port,) = [offer.address for offer in offers if offer.name == self.carrier]
        tls = worker_certificates(server.settings["tls_dir"])
        self.socket = tls_socket.connect("127.0.0.1", int(port), tls.identity().connecting, LIMIT_S)
        self.socket.setblocking(True)

    def send(self, message: bytes) -> None:
        self.socket.sendmsg([message])

    def _read(self, count: int) -> bytes:
        data = bytearray(count)
        try:
            return bytes(data[: self.socket.recv_into(data, 0, socket.MSG_WAITALL)])
        except OSError:
            return b""


TLS = "tls"  # no carrier of its own: `tcp` of another server
PLAIN: dict[str, type[SocketClient]] = {"uds": UnixClient, "tcp": TcpClient}
SOCKETS: dict[str, type[SocketClient]] = {**PLAIN, TLS: TlsClient}
CARRIERS: dict[str, Callable[[Cluster], Client]] = {"grpc": GrpcClient, "memory": MemoryClient, **SOCKETS}
if AVAILABLE:
    CARRIERS["shm"] = SharedClient


class Bench:
    """A job with one big partition, and connections to its shard as its worker 0."""

    def __init__(self, server: Cluster, job: str, opens: Callable[[Cluster], Any]) -> None:
        self.shard = server.shards[0].shard
        self.server = server
        self.job = job
        self._opens = opens
        self.clients: list[Any] = []

    @classmethod
    def run(
        cls,
        server: Cluster,
        carrier: str,
        test: Callable[[Bench], None],
        *others: Callable[[ps.Worker, ps.Table], None],
        num_partitions: int = 1,
    ) -> None:
        """Runs a test while a worker holds the job open; each of the others is a further worker's script."""
        job = fresh_name()

        def body(worker: ps.Worker) -> None:
            options = ps.BucketOptions(partition_bytes=wire.MAX_PAYLOAD_BYTES // num_partitions)
            table = worker.table({"w": torch.zeros(BIG)}, optimizer=ps.SGD(lr=1.0), buckets=options)
            if worker.rank:
                others[worker.rank - 1](worker, table)
                return
            bench = cls(server, job, CARRIERS[carrier])
            try:
                test(bench)
            finally:
                for client in bench.clients:
                    client.close()

        run_workers(server, body, job=job, consistency="asp", num_workers=1 + len(others))

    def connection(self) -> Any:
        client = self._opens(self.server)
        self.clients.append(client)
        return client

    def hello(self, token: bytes | None = None) -> bytes:
        token = token or self.shard.make_token(self.job, 0, 1)
        frame = wire.Frame(
            kind=wire.Kind.HELLO,
            flags=getattr(self._opens, "hello_flags", 0),
            worker=0,
            incarnation=1,
            meta=token + self.job.encode(),
        )
        return wire.encode(frame)

    def ready(self) -> Any:
        client = self.connection()
        client.send(self.hello())
        assert self.next(client).kind is wire.Kind.HELLO
        return client

    @staticmethod
    def next(client: Client) -> wire.Frame:
        message = client.receive()
        assert message is not None
        return wire.decode(message)

    @classmethod
    def refusal(cls, client: Client) -> PsError:
        """The error in the next frame, which must be a REFUSE."""
        frame = cls.next(client)
        assert frame.kind is wire.Kind.REFUSE, frame
        return refusal(frame)


def push(step: int, value: float) -> bytes:
    payload = torch.full((BIG,), value).numpy().tobytes()
    frame = wire.Frame(kind=wire.Kind.PUSH, step=step, worker=0, incarnation=1, payload=payload)
    return wire.encode(frame)


def pull(step: int, *partitions: int) -> bytes:
    meta = struct.pack(f"<{len(partitions) or 1}I", *(partitions or (0,)))
    return wire.encode(wire.Frame(kind=wire.Kind.PULL, step=step, worker=0, incarnation=1, meta=meta))
