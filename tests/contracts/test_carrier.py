"""What every data carrier owes (`ps_wire.frames.carrier`): whole frames, in order, or a closed connection."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_server.rpc import greeting
from ps_server.shard.transport import outbox
from ps_server.shard.transport.session import PULLED_TOGETHER
from ps_wire.errors import FrameMalformed, PsError, StrangerRefused
from ps_wire.frames import frame as wire
from tests.component.service import Cluster
from tests.until import until

from .bench import BIG, CARRIERS, LIMIT_S, Bench, Client, pull, push

STREAMS = ("uds", "shm", "tcp", "tls")  # which cut bytes into frames themselves


@pytest.fixture(params=CARRIERS)
def carrier(request: Any) -> str:
    return request.param


def test_the_largest_frames_come_whole_and_in_order_both_ways(in_job: Any):
    def test(bench: Bench) -> None:
        client = bench.ready()
        for step in range(6):  # more than the other end takes at a time
            client.send(push(step, -1.0))
            client.send(pull(step + 1))
        answers = [bench.next(client) for _ in range(12)]  # an ACK does not wait for weights
        acks = [answer for answer in answers if answer.kind is wire.Kind.ACK]
        assert [ack.step for ack in acks] == list(range(6))
        for step, pulled in enumerate(answer for answer in answers if answer.kind is not wire.Kind.ACK):
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


def refused_and_closed(bench: Bench, message: bytes) -> None:
    """Before and after HELLO; another connection is served."""
    before = bench.shard.refused_frames
    for client in (bench.connection(), bench.ready()):
        client.send(message)
        assert bench.next(client).kind is wire.Kind.REFUSE
        assert client.receive() is None
    assert bench.shard.refused_frames >= before + 2  # a HELLO of a worker that has just left is one, too
    other = bench.ready()
    other.send(pull(0))
    assert bench.next(other).kind is wire.Kind.PULLED


@pytest.mark.parametrize("message", [bytes(64), b"GET / HTTP/1.1\r\n\r\n" * 9], ids=["zeros", "http"])
def test_bytes_that_are_no_frame_close_the_connection_and_are_counted(in_job: Any, message: bytes):
    in_job(lambda bench: refused_and_closed(bench, message))


@pytest.mark.parametrize("carrier", ["grpc", "memory"], indirect=True)
@pytest.mark.parametrize("message", [b"\x00", push(0, 1.0)[:-1]], ids=["short", "truncated"])
def test_a_message_that_is_not_a_whole_frame_closes_the_connection(in_job: Any, message: bytes):
    """A stream of bytes would wait for the rest: `test_socket_carriers.py`."""
    in_job(lambda bench: refused_and_closed(bench, message))


def test_a_frame_that_does_not_fit_is_refused_and_the_connection_goes_on(in_job: Any):
    def test(bench: Bench) -> None:
        client = bench.ready()
        client.send(wire.encode(wire.Frame(kind=wire.Kind.PUSH, worker=0, incarnation=1, payload=b"1234")))
        assert bench.next(client).kind is wire.Kind.REFUSE
        client.send(push(0, 1.0))
        assert bench.next(client).kind is wire.Kind.ACK

    in_job(test)


def test_a_wrong_token_is_refused_and_the_connection_closed(in_job: Any):
    def test(bench: Bench) -> None:
        client = bench.connection()
        client.send(bench.hello(b"sixteen bytes..."))
        assert isinstance(bench.refusal(client), StrangerRefused)
        assert client.receive() is None

    in_job(test)


def test_a_second_hello_is_refused_and_the_connection_goes_on(in_job: Any):
    def test(bench: Bench) -> None:
        client = bench.ready()
        client.send(bench.hello())
        assert isinstance(bench.refusal(client), FrameMalformed)
        client.send(pull(0))
        assert bench.next(client).kind is wire.Kind.PULLED

    in_job(test)


def sending(client: Client, messages: list[bytes]) -> None:
    """Sends on a thread: the other end may not take them yet."""

    def run() -> None:
        with contextlib.suppress(OSError):  # it is cut off, or the test is over
            for message in messages:
                client.send(message)

    threading.Thread(target=run, daemon=True).start()


def test_a_peer_that_stops_reading_holds_up_nobody_and_gets_what_it_asked_for(
    carrier: str, its_server: Cluster
):
    """Others go on, the memory that waits for it is bounded, and no reply is torn: each is of its version."""
    stalled, read = threading.Event(), threading.Event()
    rounds = 20

    def other(worker: ps.Worker, table: ps.Table) -> None:
        assert stalled.wait(LIMIT_S)
        for _ in range(5):
            table.push({"w": torch.full((BIG,), -1.0)})
            table.pull().result(LIMIT_S)
        read.set()

    def test(bench: Bench) -> None:
        client = bench.ready()
        sending(client, [message for step in range(rounds) for message in (push(step, -1.0), pull(step + 1))])
        (cell,) = bench.shard.table(bench.job, 0).cells()
        bound = outbox.MAX_OUTBOX_BYTES // wire.MAX_PAYLOAD_BYTES + 2
        until(lambda: len(cell.values._weights._left) >= bound - 3)
        stalled.set()
        assert read.wait(LIMIT_S)
        assert len(cell.values._weights._left) <= bound
        acked = []
        for _ in range(2 * rounds):
            answer = bench.next(client)
            if answer.kind is wire.Kind.ACK:
                acked.append(answer.step)
            else:
                values = torch.frombuffer(bytearray(answer.payload), dtype=torch.float32)
                assert torch.equal(values, torch.full((BIG,), float(answer.version)))
        assert acked == list(range(rounds))

    Bench.run(its_server, carrier, test, other)


@pytest.mark.parametrize("together", [1, 64], ids=["frames", "one list"])
def test_answers_of_one_list_and_of_frames_that_come_together_are_bounded_too(
    carrier: str, its_server: Cluster, monkeypatch: pytest.MonkeyPatch, together: int
):
    num_partitions, bound = 64, 1 << 20
    monkeypatch.setattr(outbox, "MAX_OUTBOX_BYTES", bound)
    part = wire.MAX_PAYLOAD_BYTES // num_partitions
    buffers = 1 << 22  # of the system, or of gRPC
    most = bound + (PULLED_TOGETHER + 1) * part + buffers
    assert most < wire.MAX_PAYLOAD_BYTES * 7 // 8

    def test(bench: Bench) -> None:
        cells = bench.shard.table(bench.job, 0).cells()
        assert len(cells) == num_partitions
        client = bench.ready()
        before = sum(cell.meters.bytes_out for cell in cells)

        def answered() -> int:
            return sum(cell.meters.bytes_out for cell in cells) - before

        wanted = range(num_partitions)
        lists = [wanted[start : start + together] for start in range(0, num_partitions, together)]
        sending(
            client,
            [b"".join(pull(0, *some) for some in lists)]
            if carrier in STREAMS
            else [pull(0, *some) for some in lists],
        )
        until(lambda: answered() >= bound)
        pulled = set()
        while len(pulled) < num_partitions:
            assert answered() - len(pulled) * part <= most
            frame = bench.next(client)
            assert frame.kind is wire.Kind.PULLED
            pulled.add(frame.partition)

    Bench.run(its_server, carrier, test, num_partitions=num_partitions)


def test_a_list_has_each_partition_once(in_job: Any):
    def test(bench: Bench) -> None:
        client = bench.ready()
        client.send(pull(0, 0, 0))
        assert isinstance(bench.refusal(client), FrameMalformed)
        client.send(pull(0))
        assert bench.next(client).kind is wire.Kind.PULLED

    in_job(test)


def test_a_peer_that_never_reads_is_cut_off(in_job: Any, monkeypatch: pytest.MonkeyPatch):
    """It gets no more than what had left already; the connection is ended, and nothing of it is kept."""
    monkeypatch.setattr(outbox, "MAX_OUTBOX_BYTES", 1 << 40)
    monkeypatch.setattr(outbox, "MAX_OUTBOX_FRAMES", 4)

    def test(bench: Bench) -> None:
        sockets = bench.server.shards[0].sockets
        connections = sockets._connections.copy()
        (cell,) = bench.shard.table(bench.job, 0).cells()
        client, before = bench.ready(), cell.meters.bytes_out
        sending(client, [pull(0)] * 10)
        until(lambda: cell.meters.bytes_out - before > 4 * wire.MAX_PAYLOAD_BYTES)
        until(lambda: sockets._connections <= connections and not cell.values._weights._held())
        answers = 0
        while client.receive() is not None:
            answers += 1
        assert answers < 4

    in_job(test)


def served(bench: Bench) -> bool:
    """Whether one who comes now is answered, and not cut."""
    try:
        client = bench.ready()
        client.send(pull(0))
        return bench.next(client).kind is wire.Kind.PULLED
    except (AssertionError, PsError, OSError):
        return False


@pytest.mark.parametrize("carrier", sorted(CARRIERS.keys() - {"memory"}), indirect=True)
def test_idle_strangers_shut_nobody_out(in_job: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(greeting, "MAX_STRANGERS", 3)

    def test(bench: Bench) -> None:
        first, *_ = [bench.connection() for _ in range(5)]
        assert first.receive() is None
        assert any(served(bench) for _ in range(20))  # who comes while they still do may be cut with them

    in_job(test)
