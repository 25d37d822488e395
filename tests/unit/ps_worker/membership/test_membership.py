"""A membership that begins, and one that is given up: what its stream brings is answered, and lost to nobody.

What comes of one that is over concerns no incarnation after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from ps_wire.errors import ConnectionLost, PsError
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.membership import membership as membership_module
from ps_worker.membership.member_stream import MemberStream
from ps_worker.membership.membership import Membership
from ps_worker.membership.round_barrier import RoundBarrier
from ps_worker.membership.snapshot_promise import SnapshotPromise
from ps_worker.settings import read
from tests.until import LIMIT_S, until

Script = Callable[[Iterator[pb.MemberRequest]], Iterable[pb.MemberReply]]


class Slow(SnapshotPromise):
    """Is held while a stream that has broken ends what was promised."""

    def __init__(self) -> None:
        super().__init__(dict, bytes)
        self.ending, self.go_on = threading.Event(), threading.Event()

    def end(self, number: int | None = None) -> None:
        if threading.current_thread().name == "ps-member":
            self.ending.set()
            assert self.go_on.wait(LIMIT_S)
        super().end(number)


class Replies:
    """A stream: lets a worker in, plays a script, and breaks; so does the next one."""

    def __init__(self, requests: Iterator[pb.MemberRequest], script: Script) -> None:
        self._requests, self._script = requests, script

    def __iter__(self) -> Iterator[pb.MemberReply]:
        if next(self._requests).WhichOneof("kind") == "join":
            yield pb.MemberReply(number=1, joined=pb.Joined(worker=0, incarnation=1, session=b"s"))
            yield from self._script(self._requests)
        raise ConnectionLost("broke")

    def cancel(self) -> None: ...


class Coordinator:
    """As a service, too."""

    addresses = ("a:1",)

    def __init__(self, script: Script = lambda _: ()) -> None:
        self._script = script

    @property
    def coordinator(self) -> Coordinator:
        return self

    def Member(self, requests: Iterator[pb.MemberRequest]) -> Replies:  # noqa: N802 - gRPC's
        return Replies(requests, self._script)


def membership_of(service: Coordinator, promise: SnapshotPromise, failed: list[PsError]) -> Membership:
    return Membership(
        read({}, servers="a:1", num_workers=1, retry_limit=0.01),
        service,  # type: ignore[arg-type]
        progress=pb.Progress,
        on_failure=failed.append,
        log=lambda _: None,
        promise=promise,
        rounds=RoundBarrier(dict),
    )


def test_what_a_failing_stream_still_ends_is_waited_for_where_its_incarnation_is_given_up() -> None:
    """Else it would end the promise and the rounds of the next incarnation."""
    promise, over = Slow(), threading.Event()
    membership = membership_of(Coordinator(), promise, [])
    membership.join()
    assert promise.ending.wait(LIMIT_S)

    def abandon() -> None:
        membership.abandon()
        over.set()

    abandoning: Any = threading.Thread(target=abandon)
    abandoning.start()
    assert not over.wait(0.1)
    promise.go_on.set()
    abandoning.join(LIMIT_S)
    assert over.is_set()
    membership.wait_threads()


def test_what_comes_right_behind_the_word_that_it_has_joined_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that joins may stand still while others run, before it knows the stream that it makes."""
    answers, failed = list[pb.MemberRequest](), list[PsError]()

    def asks(requests: Iterator[pb.MemberRequest]) -> Iterator[pb.MemberReply]:
        yield pb.MemberReply(number=2, cut_prepare=pb.CutPrepare(number=7))
        answers.append(next(said for said in requests if said.WhichOneof("kind") != "heartbeat"))

    class StandsStill(MemberStream):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            if self.threads:
                self.threads[0].join(0.5)  # until it has failed at an answer, or waits for one to be said

    monkeypatch.setattr(membership_module, "MemberStream", StandsStill)
    membership = membership_of(Coordinator(asks), SnapshotPromise(dict, bytes), failed)
    membership.join()
    until(lambda: bool(answers) or membership.failure is not None)
    assert [answer.cut_ready.number for answer in answers] == [7]
    membership.abandon()
    membership.wait_threads()


def test_a_failure_right_behind_the_word_that_it_has_joined_is_handed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where it comes before the thread that joins goes on: nobody hands it on later."""
    failed: list[PsError] = []
    membership = membership_of(Coordinator(), SnapshotPromise(dict, bytes), failed)
    wait = membership._wait

    def stands_still(kind: str, limit_s: float | None) -> Any:
        found = wait(kind, limit_s)
        assert membership._stream is not None
        membership._stream.threads[0].join(LIMIT_S)
        return found

    monkeypatch.setattr(membership, "_wait", stands_still)
    joined = membership.join()
    assert [type(error) for error in failed] == [ConnectionLost]
    assert joined.incarnation == 1
    assert membership.failure is failed[0]
    membership.abandon()
    membership.wait_threads()
