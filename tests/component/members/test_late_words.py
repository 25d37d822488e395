"""A stream to the coordinator whose first message is late: its host or its network is busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_server.coordinator import member_streams, readers, service
from ps_server.shard import follower
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_worker.membership.member_stream import MemberStream
from ps_worker.readers.reader import Reader
from tests.component.readers import reader_of
from tests.component.service import Cluster, LoopThread, fresh_name, run_workers
from tests.inside import link_of
from tests.until import LIMIT_S, until


class LateWords:
    """A stream of a member begins late: not before the test is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.late = False  # the next one
        self.first: list[str | None] = []  # of each stream, what it begins with
        self.over = threading.Event()
        outgoing = MemberStream._outgoing

        def begin(stream: MemberStream, number: int, first: Any) -> Iterator[Any]:
            self.first.append(first.WhichOneof("kind"))
            if self.late:
                self.late = False
                self.over.wait(LIMIT_S)
            yield from outgoing(stream, number, first)

        monkeypatch.setattr(MemberStream, "_outgoing", begin)
        self._monkeypatch = monkeypatch

    def come(self) -> None:
        """The next stream is late; from now on, so that none of before is on a slow machine."""
        self.late = True
        self._monkeypatch.setattr(member_streams, "JOIN_LIMIT_S", 0.5)


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateWords]:
    made = LateWords(monkeypatch)
    yield made
    made.over.set()


def train(worker: ps.Worker) -> None:
    """The table needs the coordinator's word."""
    table = worker.table({"w": torch.zeros(8)}, optimizer=ps.SGD(lr=1.0))
    table.push({"w": torch.full((8,), -1.0)})
    assert (table.pull().result(LIMIT_S).values["w"] == 1).all()
    worker.finish()


def test_a_worker_that_says_late_that_it_joins_joins(cluster: Cluster, words: LateWords) -> None:
    words.come()
    with ps.connect(servers=cluster.servers, job=fresh_name()) as worker:
        train(worker)
    assert words.first[:2] == ["join", "join"]


def test_a_worker_that_says_late_that_it_is_still_there_goes_on(cluster: Cluster, words: LateWords) -> None:
    """Its stream broke; the one after it is late, and the next one goes on."""
    with ps.connect(servers=cluster.servers, job=fresh_name(), lease=60) as worker:
        words.come()
        stream = link_of(worker).presence.membership._stream
        assert stream is not None
        stream._call.cancel()
        until(lambda: not words.late, "the stream is made again")
        train(worker)
    assert words.first[:3] == ["join", "resume", "resume"]


def test_a_reader_that_says_late_that_it_joins_reads(cluster: Cluster, monkeypatch) -> None:
    job = fresh_name()
    run_workers(cluster, train, job=job)
    asked: list[str] = []
    ask = Reader._ask

    def ask_late(self: Reader, until_s: float, **request: Any) -> Any:
        asked.extend(request)
        if len(asked) == 1:
            until(lambda: not self._inbox.empty(), "the stream is given up")
        return ask(self, until_s, **request)

    monkeypatch.setattr(Reader, "_ask", ask_late)
    monkeypatch.setattr(readers, "JOIN_LIMIT_S", 0.5)
    with reader_of(cluster, job) as reader:
        model = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.zeros(8))})
        reader.read(model)
    assert (model["w"] == 1).all()
    assert asked[:2] == ["join", "join"]


def test_a_shard_that_says_late_that_it_registers_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[CoordinatorStub] = []  # each follows once

    async def late(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
        await asyncio.get_running_loop().create_future()  # until the stream is over
        async for message in messages:
            yield message

    def stub_of(channel: Any) -> CoordinatorStub:
        stub = CoordinatorStub(channel)
        follow = stub.Follow
        stub.Follow = lambda messages, **more: follow(late(messages) if len(begun) == 1 else messages, **more)
        begun.append(stub)
        return stub

    monkeypatch.setattr(follower.rpc, "CoordinatorStub", stub_of)
    monkeypatch.setattr(service, "REGISTER_LIMIT_S", 0.5)
    loop = LoopThread()
    try:
        made = Cluster(loop, 2)
        run_workers(made, train)
        made.close()
    finally:
        loop.close()
    assert len(begun) >= 2
