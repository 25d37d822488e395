"""A worker's stream to the coordinator: nothing is lost with one that breaks, and nothing comes twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from ps_wire.errors import ConnectionLost, PsError
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from ps_worker.membership.member_stream import MemberStream
from tests.until import LIMIT_S

Requests = Iterator[pb.MemberRequest]
JOINED = pb.MemberReply(number=1, joined=pb.Joined(worker=0, incarnation=1, session=b"s"))


def word(number: int) -> pb.MemberReply:
    return pb.MemberReply(number=number, notice=pb.Notice(text=str(number)))


def resumed(taken: int) -> pb.MemberReply:
    return pb.MemberReply(resumed=pb.Resumed(taken=taken))


class Coordinator:
    """Plays one script for each stream that is made, then breaks it."""

    def __init__(self, *scripts: Callable[[Requests], Iterator[pb.MemberReply]]) -> None:
        self.addresses = ["a:1"]
        self.coordinator = self
        self.first: list[pb.MemberRequest] = []
        self.plays = threading.Event()
        self._scripts = list(scripts)

    def Member(self, requests: Requests) -> Iterator[pb.MemberReply]:  # noqa: N802 - gRPC's
        assert self.plays.wait(LIMIT_S)
        self.first.append(next(requests))
        yield from self._scripts.pop(0)(requests)
        raise ConnectionLost("broke")


class Worker:
    """Who has such a stream."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.taken: list[int] = []
        self.failed: list[PsError] = []
        self.over = threading.Event()
        self.stream = MemberStream(
            coordinator,  # type: ignore[arg-type]
            join=pb.Join(job=spec_pb2.Job(name="j"), lease_s=1000.0),
            retry_limit_s=LIMIT_S,
            progress=pb.Progress,
            on_reply=lambda reply: self.taken.append(reply.number),
            fail=self._fail,
            log=lambda _: None,
        )
        self.stream.start()

    def _fail(self, error: PsError) -> None:
        self.failed.append(error)
        self.over.set()


def next_said(requests: Requests) -> pb.MemberRequest:
    """The next that is no heartbeat."""
    return next(request for request in requests if request.WhichOneof("kind") != "heartbeat")


def test_what_comes_again_over_a_new_stream_is_taken_once():
    """It says how far it has heard; what is said again all the same is no news."""
    done = threading.Event()

    def first(_: Requests) -> Iterator[pb.MemberReply]:
        yield from (JOINED, word(2))

    def second(_: Requests) -> Iterator[pb.MemberReply]:
        yield from (resumed(0), word(2), word(3))
        done.set()

    def third(_: Requests) -> Iterator[pb.MemberReply]:
        worker.stream.quiet()
        yield resumed(0)

    coordinator = Coordinator(first, second, third)
    worker = Worker(coordinator)
    coordinator.plays.set()
    assert done.wait(LIMIT_S)
    assert worker.over.wait(LIMIT_S)
    assert worker.taken == [1, 2, 3]
    kinds = [request.WhichOneof("kind") for request in coordinator.first]
    assert kinds == ["join", "resume", "resume"]
    assert [request.resume.heard for request in coordinator.first[1:]] == [2, 3]
    worker.stream.close()


def test_what_was_not_taken_is_said_again_and_what_was_is_not():
    """In order, under the numbers that it had."""
    said: list[int] = []

    def first(requests: Requests) -> Iterator[pb.MemberReply]:
        yield JOINED
        for _ in range(3):
            worker.stream.say(holding=pb.Holding())
            said.append(next_said(requests).number)

    def second(requests: Requests) -> Iterator[pb.MemberReply]:
        yield resumed(1)
        said.extend(next_said(requests).number for _ in range(2))
        worker.stream.quiet()

    coordinator = Coordinator(first, second)
    worker = Worker(coordinator)
    coordinator.plays.set()
    assert worker.over.wait(LIMIT_S)
    assert said == [1, 2, 3, 2, 3]
    worker.stream.close()
