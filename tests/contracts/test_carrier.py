"""What every data carrier owes (`ps_wire.carrier`): whole frames, in order, or a closed connection."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ps_wire import frame as wire
from ps_wire.errors import FrameMalformed, StrangerRefused

from .bench import BIG, CARRIERS, Bench, pull, push


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
    assert bench.shard.refused_frames == before + 2
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
