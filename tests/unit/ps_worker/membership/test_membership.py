"""A membership that is given up: what its stream still brings concerns no incarnation after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from ps_wire.errors import ConnectionLost
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.membership.membership import Membership
from ps_worker.membership.round_barrier import RoundBarrier
from ps_worker.membership.snapshot_promise import SnapshotPromise
from ps_worker.settings import read
from tests.until import LIMIT_S


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
    """Lets a worker in, and then breaks its stream; another one, too."""

    def __init__(self, requests: Iterator[pb.MemberRequest]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[pb.MemberReply]:
        if next(self._requests).WhichOneof("kind") == "join":
            yield pb.MemberReply(number=1, joined=pb.Joined(worker=0, incarnation=1, session=b"s"))
        raise ConnectionLost("broke")

    def cancel(self) -> None: ...


class Coordinator:
    """As a service, too."""

    addresses = ("a:1",)
    Member = Replies

    @property
    def coordinator(self) -> Coordinator:
        return self


def test_what_a_failing_stream_still_ends_is_waited_for_where_its_incarnation_is_given_up() -> None:
    """Else it would end the promise and the rounds of the next incarnation."""
    promise, service, over = Slow(), Coordinator(), threading.Event()
    membership = Membership(
        read({}, servers="a:1", num_workers=1, retry_limit=0.01),
        service,  # type: ignore[arg-type]
        progress=pb.Progress,
        on_failure=lambda _: None,
        log=lambda _: None,
        promise=promise,
        rounds=RoundBarrier(dict),
    )
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
