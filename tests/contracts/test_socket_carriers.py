"""What `uds` and `tcp` owe beyond the others: they meet strangers, and see streams of bytes."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_server.rpc import greeting
from ps_server.shard.shard import Shard
from ps_server.shard.traffic import Refused
from ps_server.shard.transport import socket_connection, socket_server
from ps_wire.errors import FrameTooLarge, StrangerRefused
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Message
from ps_worker.transport.socket_stream import DOORS
from tests.component.service import Cluster, run_workers
from tests.until import until

from .bench import BIG, LIMIT_S, PLAIN, SOCKETS, TLS, Bench, TcpClient, pull, push

FUZZ_CASES = 150


@pytest.fixture(params=SOCKETS)
def carrier(request: Any) -> str:
    return request.param


def announcing(frame: wire.Frame, **lengths: int) -> bytes:
    """The header alone, with other lengths than the frame has."""
    header = bytearray(wire.header(frame, 0))
    header[56:60] = lengths.get("payload", 0).to_bytes(4, "little")
    header[60:64] = lengths.get("meta", 0).to_bytes(4, "little")
    return bytes(header)


@pytest.mark.parametrize("cut", [1, 63, 64, 65, 100_000, -1], ids=str)
def test_a_peer_that_vanishes_inside_a_frame_leaves_nothing_of_it(in_job: Any, cut: int):
    """The push was never there: its step is taken from the next connection."""

    def test(bench: Bench) -> None:
        client = bench.ready()
        client.send(push(0, 1.0)[:cut])
        client.close()
        other = bench.ready()
        other.send(push(0, -2.0))
        assert bench.next(other).kind is wire.Kind.ACK
        other.send(pull(1))
        assert bench.next(other).payload[:4] == torch.tensor(2.0).numpy().tobytes()

    in_job(test)


@pytest.mark.parametrize(
    "lengths", [{"payload": 0xFFFFFFFF}, {"meta": 0xFFFFFFFF}, {"payload": wire.MAX_PAYLOAD_BYTES + 1}]
)
def test_lengths_over_the_limits_are_refused_before_anything_comes(in_job: Any, lengths: dict[str, int]):
    def test(bench: Bench) -> None:
        client = bench.ready()
        client.send(announcing(wire.Frame(kind=wire.Kind.PUSH, worker=0, incarnation=1), **lengths))
        assert isinstance(bench.refusal(client), FrameTooLarge)
        assert client.receive() is None

    in_job(test)


@pytest.mark.parametrize("lengths", [{"payload": wire.MAX_PAYLOAD_BYTES}, {"meta": 4096}, {"meta": 129}])
def test_a_stranger_cannot_announce_more_than_a_hello(in_job: Any, lengths: dict[str, int]):
    def test(bench: Bench) -> None:
        client = bench.connection()
        client.send(announcing(wire.Frame(kind=wire.Kind.HELLO, worker=0, incarnation=1), **lengths))
        error = bench.refusal(client)
        assert isinstance(error, FrameTooLarge)
        assert "128 are taken here" in error.message
        assert client.receive() is None

    in_job(test)


def test_a_stranger_who_is_slow_is_closed_and_counted(in_job: Any, monkeypatch: Any):
    """The limit is one for all of HELLO, however its bytes come."""

    def test(bench: Bench) -> None:
        monkeypatch.setattr(socket_connection, "HELLO_LIMIT_S", 0.2)  # the job's worker has said its own
        before = bench.shard.refusals()[Refused.CONNECTION]
        client = bench.connection()
        with contextlib.suppress(OSError):  # on a busy machine it is closed already
            client.send(b"P")
        client.socket.settimeout(LIMIT_S)
        assert client.receive() is None
        assert bench.shard.refusals()[Refused.CONNECTION] == before + 1

    in_job(test)


@pytest.mark.parametrize("carrier", PLAIN, indirect=True)
def test_strangers_are_few_and_the_oldest_goes_for_a_newcomer(
    in_job: Any, carrier: str, monkeypatch: pytest.MonkeyPatch
):
    """So that who is idle shuts nobody out. Members do not count."""
    monkeypatch.setattr(greeting, "MAX_STRANGERS", 2)
    monkeypatch.setattr(socket_connection, "HELLO_LIMIT_S", LIMIT_S)

    def test(bench: Bench) -> None:
        members = [bench.ready() for _ in range(3)]
        refused, those = (
            bench.shard.refusals()[Refused.CONNECTION],
            bench.server.shards[0].sockets.strangers[carrier],
        )
        first, second = (bench.connection() for _ in range(2))
        until(lambda: len(those) == 2)
        third = bench.connection()
        assert first.receive() is None
        assert bench.shard.refusals()[Refused.CONNECTION] == refused + 1
        assert bench.ready() not in members
        assert second.receive() is None
        until(lambda: len(those) == 1)
        third.close()
        until(lambda: not those)

    in_job(test)


@pytest.mark.parametrize("carrier", ["uds"], indirect=True)
def test_strangers_of_one_listener_shut_nobody_out_of_another(in_job: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(greeting, "MAX_STRANGERS", 2)

    def test(bench: Bench) -> None:
        elsewhere = [TcpClient(bench.server) for _ in range(2)]
        until(lambda: len(bench.server.shards[0].sockets.strangers["tcp"]) == 2)
        idle = bench.connection()
        bench.ready()
        idle.send(bench.hello())
        assert bench.next(idle).kind is wire.Kind.HELLO
        for stranger in elsewhere:
            stranger.close()

    in_job(test)


@pytest.mark.parametrize("carrier", ["tcp"], indirect=True)
def test_without_a_thread_for_who_connects_it_is_cut_off_and_nothing_is_left_of_it(
    in_job: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
):
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "ps-send":
            raise RuntimeError("can't start new thread")
        start(thread)

    def test(bench: Bench) -> None:
        sockets = bench.server.shards[0].sockets
        before = sockets._connections.copy()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for said in (bytes(wire.HEADER_BYTES), bench.hello()):
                client = bench.connection()
                client.send(said)
                assert client.receive() is None
        until(lambda: sockets._connections == before and not sockets.strangers["tcp"])
        assert "can't start new thread" in caplog.text
        bench.ready()

    in_job(test)


def test_a_bug_while_sending_is_logged_and_ends_the_connection(in_job: Any, caplog: Any):
    """Else the peer would wait for its answer for ever."""

    def test(bench: Bench) -> None:
        sockets = bench.server.shards[0].sockets
        before = sockets._connections.copy()
        client = bench.ready()
        (mine,) = sockets._connections - before
        mine._outbox.send(Message(wire.Frame(kind=wire.Kind.ACK, step=-1)))  # cannot be encoded
        assert client.receive() is None
        until(lambda: mine not in sockets._connections)
        assert "bug while sending" in caplog.text

    in_job(test)


def test_mutated_frames_are_refused_or_taken_and_the_port_lives_on(in_job: Any, carrier: str):
    """A seeded fuzz of what a member and a stranger may send; the shard then serves as before."""
    draw = random.Random(5)
    seeds = [
        wire.encode(wire.Frame(kind=kind, worker=0, incarnation=1, meta=bytes(4), payload=bytes(64)))
        for kind in wire.Kind
    ]

    def mutated() -> bytes:
        data = bytearray(draw.choice(seeds))
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        return bytes(data[: draw.randrange(1, len(data) + 1)] if draw.random() < 0.3 else data)

    def test(bench: Bench) -> None:
        for case in range(FUZZ_CASES // (5 if carrier == TLS else 1)):  # the frames are the same
            client = bench.ready() if case % 2 else bench.connection()
            with contextlib.suppress(OSError):
                client.send(mutated())
                client.socket.shutdown(socket.SHUT_WR)
            while client.receive() is not None:
                pass
            client.close()
        client = bench.ready()
        client.send(push(0, -1.0))
        assert bench.next(client).kind in (wire.Kind.ACK, wire.Kind.REFUSE)
        client.send(pull(0))
        bench.next(client)

    in_job(test)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs to become another user")
def test_a_unix_socket_takes_no_process_of_another_user(server: Cluster):
    """It may speak frames as it likes: who it is decides."""
    (address,) = [offer.address for offer in server.shards[0]._service.carriers if offer.name == "uds"]
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect('\\0' + sys.argv[1]);"
        "sys.stdout.buffer.write(s.recv(65536))"
    )
    outcome = subprocess.run(
        ["/usr/bin/env", "python3", "-c", code, address[1:]],
        user=65534,
        stdout=subprocess.PIPE,
        cwd="/",
        timeout=LIMIT_S,
        check=True,
    )
    refusal = wire.decode(outcome.stdout)
    assert refusal.kind is wire.Kind.REFUSE
    assert StrangerRefused.__name__.encode() in bytes(refusal.meta)
    assert b"user 65534" in bytes(refusal.meta)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_without_descriptors_it_says_so_once_and_goes_on(server: Cluster, monkeypatch: Any, caplog: Any):
    monkeypatch.setattr(socket_connection, "HELLO_LIMIT_S", LIMIT_S)
    sockets = server.shards[0].sockets
    until(lambda: not sockets._connections)
    (address,) = [offer.address for offer in server.shards[0]._service.carriers if offer.name == "tcp"]
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = [socket.socket() for _ in range(8)]
    lowest = os.dup(0)
    os.close(lowest)
    held: list[int] = []  # what other tests have left open may be closed just now: that leaves holes
    connected: list[socket.socket] = []

    def says() -> bool:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        if "cannot take a data connection" in caplog.text:
            return True
        if len(sockets.strangers["tcp"]) == len(connected) < len(clients):  # each has found a hole
            connected.append(clients[len(connected)])
            connected[-1].connect(("127.0.0.1", int(address)))
        return False

    with caplog.at_level(logging.ERROR, logger="ps_server"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            until(says)
            assert not sockets._stopping.wait(3 * socket_server.PAUSE_S)
        finally:
            for descriptor in held:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        connected[-1].sendall(bytes(64))
        connected[-1].settimeout(LIMIT_S)
        assert wire.decode(connected[-1].recv(4096)).kind is wire.Kind.REFUSE
    for client in clients:
        client.close()
    assert caplog.text.count("cannot take a data connection") == 1


def own_threads() -> int:
    """Those of the loop's pool come when two orders meet, and stay."""
    return sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate())


def used_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - numbers, not paths


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_nothing_is_left_of_connections_that_have_ended(carrier: str, its_server: Cluster):
    """Not a descriptor, not a thread; neither of workers that left nor of peers that vanished."""
    opens = SOCKETS[carrier]

    def job() -> None:
        def body(worker: ps.Worker) -> None:
            worker.table({"w": torch.zeros(10)}, optimizer=ps.SGD(lr=1.0)).pull().result(LIMIT_S)

        run_workers(its_server, body, num_workers=2, carrier=opens.carrier)
        opens(its_server).close()
        until(lambda: not its_server.shards[0].sockets._connections)

    job()
    threads, descriptors = own_threads(), used_descriptors()
    for _ in range(3):
        job()
    until(lambda: own_threads() <= threads)
    until(lambda: used_descriptors() <= descriptors + 2)  # gRPC keeps a spare one or two


@pytest.mark.parametrize("carrier", PLAIN, indirect=True)
def test_a_server_that_stops_frees_everything(carrier: str, monkeypatch: pytest.MonkeyPatch):
    """At once: it waits for no stranger. Nobody listens any more."""
    monkeypatch.setattr(socket_connection, "HELLO_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(socket_connection, "CLOSE_LIMIT_S", LIMIT_S)
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
    sockets = socket_server.SocketServer(shard, host="127.0.0.1", port=0)
    sockets.begin()
    sockets.open()
    (address,) = [offer.address for offer in sockets.offers if offer.name == carrier]
    with DOORS[carrier](address, "127.0.0.1:1", LIMIT_S) as client:
        client.sendall(b"P")
        until(lambda: len(sockets.strangers[carrier]) == 1)
        started_s = time.monotonic()
        sockets.close(limit_s=LIMIT_S)
        assert time.monotonic() - started_s < LIMIT_S / 2
        assert not sockets._connections
        with contextlib.suppress(ConnectionError):
            assert client.recv(1) == b""
    with pytest.raises(OSError):  # noqa: PT011 - refused
        DOORS[carrier](address, "127.0.0.1:1", LIMIT_S)


def test_what_a_stopping_server_has_queued_is_sent_first(
    carrier: str, its_server: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """Replies to one who reads late, then the end of the stream."""
    monkeypatch.setattr(socket_connection, "CLOSE_LIMIT_S", LIMIT_S)

    def test(bench: Bench) -> None:
        client = bench.ready()
        for step in range(3):
            client.send(push(step, -1.0))
            client.send(pull(step + 1))
        (cell,) = bench.shard.table(bench.job, 0).cells()
        until(lambda: cell.meters.bytes_out >= 4 * 4 * BIG)  # the worker's own pull at the start, and three
        for connection in bench.server.shards[0].sockets._connections.copy():
            if connection._session.carrier == SOCKETS[carrier].carrier:
                connection.stop()
        kinds = [bench.next(client).kind for _ in range(6)]
        assert sorted(kinds) == sorted([wire.Kind.ACK, wire.Kind.PULLED] * 3)
        assert client.receive() is None

    Bench.run(its_server, carrier, test)
