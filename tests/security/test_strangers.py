"""What somebody without a token costs at the control port: few connections, few messages, not for long."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from types import SimpleNamespace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ps_lab.status.observer import is_serving
from ps_server.process import server as process
from ps_server.rpc import health
from ps_wire.access.channel import CLIENT, SERVER
from tests.component.service import Cluster, LoopThread
from tests.until import LIMIT_S, until

from .raw_http2 import SETTINGS, Connection

CHECK = "/grpc.health.v1.Health/Check"


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(loop: LoopThread) -> Iterator[Cluster]:
    made = Cluster(loop, 1)
    yield made
    made.close()


def watch(channel: grpc.Channel, name: str) -> object:
    request = health_pb2.HealthCheckRequest(service=name)
    return health_pb2_grpc.HealthStub(channel).Watch(request, timeout=LIMIT_S)


def test_messages_that_never_become_whole_are_few_and_end(server: Cluster, monkeypatch: pytest.MonkeyPatch):
    """The oldest go for newcomers, the last ones when their time is over; probes are answered meanwhile."""
    monkeypatch.setattr(health, "READ_LIMIT_S", LIMIT_S * 10)
    with Connection(server.servers, LIMIT_S) as stranger:
        oldest = {stranger.begin(CHECK, 15 << 20, bytes(1000)) for _ in range(5)}
        reading = server.shards[0]._health._reading
        until(
            lambda: len(reading) == 5, "the oldest are read"
        )  # gRPC may begin calls that come together in any order
        for _ in range(health.MAX_READING):
            stranger.begin(CHECK, 15 << 20, bytes(1000))
        stranger.ended(oldest)
        assert is_serving(server.servers, timeout_s=LIMIT_S)
    monkeypatch.setattr(health, "READ_LIMIT_S", 0.2)
    with Connection(server.servers, LIMIT_S) as stranger:
        stranger.ended({stranger.begin(CHECK, 15 << 20, bytes(1000)) for _ in range(5)})


@pytest.mark.parametrize("call", ["Check", "Watch"])
def test_a_name_of_megabytes_is_refused(server: Cluster, call: str):
    with grpc.insecure_channel(server.servers, options=CLIENT) as channel:
        method = getattr(health_pb2_grpc.HealthStub(channel), call)
        with pytest.raises(grpc.RpcError) as raised:
            list([method(health_pb2.HealthCheckRequest(service="x" * (15 << 20)), timeout=LIMIT_S)][0])
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def of_python(data: bytes) -> str:
    """As the message's `FromString` in protobuf's Python implementation."""
    return data.decode()


@pytest.mark.parametrize("parse", [None, of_python], ids=["this protobuf", "protobuf in Python"])
def test_a_name_that_is_no_text_is_refused(
    server: Cluster, parse: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    if parse is not None:
        monkeypatch.setattr(health.health_pb2, "HealthCheckRequest", SimpleNamespace(FromString=parse))
    with (
        grpc.insecure_channel(server.servers, options=CLIENT) as channel,
        pytest.raises(grpc.RpcError) as raised,
    ):
        channel.unary_unary(CHECK)(b"\x0a\x01\xff", timeout=LIMIT_S)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == "this is no HealthCheckRequest"
    assert not [record for record in caplog.records if record.exc_info]


def test_few_calls_watch_and_the_oldest_goes_for_a_newcomer(server: Cluster):
    with grpc.insecure_channel(server.servers, options=CLIENT) as channel:
        serving = health_pb2.HealthCheckResponse.SERVING
        first = watch(channel, "liveness")
        assert next(first).status == serving
        others = []
        for _ in range(health.MAX_WATCHING):  # in turn: few may be there whose name has not come
            others.append(watch(channel, "liveness"))
            assert next(others[-1]).status == serving
        with pytest.raises(grpc.RpcError) as raised:
            next(first)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for it in others:
            it.cancel()


def test_all_who_watch_hear_of_a_change(loop: LoopThread):
    """Also when another one who watched has gone."""
    made = Cluster(loop, 1)
    with grpc.insecure_channel(made.servers, options=CLIENT) as channel:
        gone, stays = watch(channel, "liveness"), watch(channel, "liveness")
        assert next(gone).status == next(stays).status == health_pb2.HealthCheckResponse.SERVING
        gone.cancel()
        heard: queue.SimpleQueue[int] = queue.SimpleQueue()
        assert is_serving(made.servers, timeout_s=LIMIT_S)
        loop.loop.call_soon_threadsafe(made.shards[0]._health.end)
        heard.put(next(stays).status)
        assert heard.get() == health_pb2.HealthCheckResponse.NOT_SERVING
    made.close()


def settings(**changed: int) -> list[tuple[str, int]]:
    return [(name, changed.get(name.rpartition(".")[2], value)) for name, value in SERVER]


def test_a_connection_without_calls_ends(loop: LoopThread, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "SERVER", settings(max_connection_idle_ms=200))
    made = Cluster(loop, 1)
    with Connection(made.servers, LIMIT_S) as stranger:
        assert SETTINGS in [kind for kind, _, _ in stranger.frames()]
    assert is_serving(made.servers, timeout_s=LIMIT_S)
    made.close()


def test_connections_are_counted(loop: LoopThread, monkeypatch: pytest.MonkeyPatch):
    """One too many is closed at once, and another one is taken when one has gone."""
    monkeypatch.setattr(process, "SERVER", settings(max_allowed_incoming_connections=2))
    made = Cluster(loop, 1)
    with Connection(made.servers, LIMIT_S) as first, Connection(made.servers, LIMIT_S) as second:
        assert [next(it.frames())[0] for it in (first, second)] == [SETTINGS, SETTINGS]
        with Connection(made.servers, LIMIT_S) as third:
            assert list(third.frames()) == []
    until(lambda: is_serving(made.servers, timeout_s=LIMIT_S), "it takes connections again")
    made.close()
