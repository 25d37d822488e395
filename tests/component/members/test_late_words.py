"""A stream to the coordinator whose first message is late: its host or its network is busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_server.coordinator import member_streams
from ps_worker.membership.member_stream import MemberStream
from tests.component.service import Cluster, fresh_name
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
