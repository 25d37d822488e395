"""A worker's stream to the coordinator, with heartbeats; numbered, so that nothing is lost when it breaks.

What is said is numbered on the thread that sends it, where no Ctrl-C comes between. When the stream breaks, a
new one says how far replies have come, hears how far requests have, and both ends say the rest again. Until
then the lease runs on.

`_changed` guards everything below it; it is notified of what is to be sent.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ps_wire.errors import ConnectionLost, InternalError, PsError
from ps_wire.frames.messages import refused_from_proto
from ps_wire.frames.service import Service
from ps_wire.process import watched
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.process.retry import Retry

logger = logging.getLogger("ps_worker")

HEARTBEAT_S = 2.0  # one costs the coordinator 0.24 ms where it has nothing else to do
BEATS = 4  # at least so many come within a lease
KEPT_REQUESTS = 256  # more than a worker says without an answer: those before have been taken
SOON = 2  # tries: who is told to come again does so after as long as after so many


class MemberStream:
    """The stream of one member, made again where it breaks.

    Attributes:
        threads: that it has started.
    """

    def __init__(
        self,
        service: Service,
        *,
        join: pb.Join,
        retry_limit_s: float,
        progress: Callable[[], pb.Progress],
        on_reply: Callable[[pb.MemberReply], None],
        fail: Callable[[PsError], None],
        log: Callable[[str], None],
        renews: Callable[[], bool] | None = None,
    ) -> None:
        """Does nothing yet: who is told of replies has to know the stream first, and answers over it.

        Args:
            service: whose coordinator it talks to.
            join: the first message.
            retry_limit_s: how long a broken stream is made again; 0: not at all.
            progress: what a heartbeat brings.
            on_reply: called with every reply, once, in order; on a thread of the stream.
            fail: called at the end, unless `close` came before.
            log: says something to the person at the terminal.
            renews: whether heartbeats may renew the lease; None: always.
        """
        self._renews = renews
        self._service = service
        self._join = join
        self._retry_limit_s = retry_limit_s
        self._progress = progress
        self._on_reply = on_reply
        self._fail = fail
        self._log = log
        self._period_s = min(HEARTBEAT_S, join.lease_s / BEATS) if join.lease_s else HEARTBEAT_S
        self._queued: deque[pb.MemberRequest] = deque()
        self._changed = threading.Condition()
        self._said: set[tuple[str | None, bytes]] = set()
        self._numbered: list[pb.MemberRequest] = []
        self._number = 0
        self._heard = 0
        self._stream = 0  # the live one; what is said on another one is lost
        self._ready = 0  # the stream that may say more than its first message
        self._beats = False
        self._joined: pb.Joined | None = None
        self._closed = threading.Event()
        self._call: Any = None
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        """Joins, and tells of replies from now on."""
        for thread in (
            watched.thread("ps-member", self._run, log=logger, failed=self._failed),
            watched.endless_thread("ps-heartbeat", self._beat, log=logger, pause=self._closed.wait),
        ):
            thread.start()
            self.threads.append(thread)

    def say(self, **message: Any) -> None:
        """Says something, in order; it is not lost with a stream."""
        self._queued.append(pb.MemberRequest(**message))
        with self._changed:
            self._changed.notify_all()

    def quiet(self) -> None:
        """No more heartbeats, and no other stream when this one breaks: the worker is leaving."""
        self._closed.set()

    def close(self, *, cancel: bool = False) -> None:
        """The stream ends; `cancel`: whatever is still under way."""
        self._closed.set()
        with self._changed:
            self._stream = -1
            self._changed.notify_all()
            call = self._call
        if cancel and call is not None:
            call.cancel()

    # -- sending ---------------------------------------------------------------------------------------

    def _beat(self) -> None:
        while not self._closed.wait(self._period_s):
            if self._renews is None or self._renews():
                self._beat_now()

    def _beat_now(self) -> None:
        with self._changed:
            self._beats = True
            self._changed.notify_all()

    def _outgoing(self, stream: int, first: pb.MemberRequest) -> Iterator[pb.MemberRequest]:
        yield first
        sent = 0
        while True:
            with self._changed:
                while self._stream == stream and not self._due(stream, sent):
                    self._changed.wait()
                if self._stream != stream:
                    return
                self._number_queued()
                requests = [request for request in self._numbered if request.number > sent]
                sent = self._number
                beats, self._beats = self._beats, False
                heard = self._heard
            if beats:
                heartbeat = pb.Heartbeat(heard=heard, progress=self._progress())
                requests.append(pb.MemberRequest(heartbeat=heartbeat))
            yield from requests

    def _due(self, stream: int, sent: int) -> bool:
        return self._ready == stream and bool(self._beats or self._queued or self._number > sent)

    def _number_queued(self) -> None:
        """After a Ctrl-C the user's thread says again what may have been said: that is left out."""
        while self._queued:
            request = self._queued.popleft()
            kind = request.WhichOneof("kind")
            named = kind == "make_table" or (kind == "uploaded" and not request.uploaded.live)
            key = kind, request.SerializeToString(deterministic=True) if named else b""
            if (named or kind in ("finish", "leave")) and key in self._said:
                continue
            self._said.add(key)
            self._number += 1
            request.number = self._number
            self._numbered.append(request)
        del self._numbered[:-KEPT_REQUESTS]

    # -- receiving -------------------------------------------------------------------------------------

    def _run(self) -> None:
        retry = Retry(self._retry_limit_s, wait=self._closed.wait)
        first = pb.MemberRequest(join=self._join)
        while True:
            error = self._receive(first)
            if error is None:
                retry.work()  # it brought something
                error = ConnectionLost(f"the coordinator at {self._service.addresses[0]} ended the stream")
            elif isinstance(error, _Refused):
                if self._joined is None or not error.to_resume:
                    self._fail(error.why)
                    return
                error = error.why
                retry.hasten(SOON)  # a coordinator that has just come back
            again = retry.fail() and self._retry_limit_s > 0
            if self._joined is None or self._closed.is_set():
                self._fail(error)
                return
            if not again:
                limit = f"since {self._retry_limit_s:g} s (PS_RETRY_LIMIT)" if self._retry_limit_s else "gone"
                address = self._service.addresses[0]
                self._fail(ConnectionLost(f"the coordinator at {address} is gone {limit}: {error.message}"))
                return
            retry.pause(lambda: self._log("the stream to the coordinator broke; trying again"))
            first = pb.MemberRequest(
                resume=pb.Resume(
                    job=self._join.job.name,
                    worker=self._joined.worker,
                    incarnation=self._joined.incarnation,
                    session=self._joined.session,
                    heard=self._heard,
                )
            )

    def _failed(self, bug: Exception) -> None:
        self._fail(InternalError.of(bug))

    def _receive(self, first: pb.MemberRequest) -> PsError | None:
        """One stream; None if it ended after it had brought something, else why."""
        brought = False
        with self._changed:
            if self._stream < 0:
                return ConnectionLost("this worker has left")
            self._stream += 1
            stream = self._stream
        try:
            call = self._service.coordinator.Member(self._outgoing(stream, first))
            with self._changed:
                self._call, over = call, self._stream != stream
            if over:  # `close` came before, and found the one before
                call.cancel()
            for reply in call:
                brought = True
                self._receive_reply(stream, reply)
        except PsError as error:
            return error if isinstance(error, _Refused) or not brought else None
        finally:
            with self._changed:
                self._changed.notify_all()
        return None if brought else ConnectionLost(f"the coordinator at {self._service.addresses[0]} is gone")

    def _receive_reply(self, stream: int, reply: pb.MemberReply) -> None:
        match reply.WhichOneof("kind"):
            case "refused":
                raise _Refused(refused_from_proto(reply.refused), answers=reply.number == 0)
            case "prove":
                self._beat_now()
                return
            case "resumed":
                with self._changed:
                    self._numbered = [item for item in self._numbered if item.number > reply.resumed.taken]
                    self._ready = stream
                    self._changed.notify_all()
                return
        with self._changed:
            if reply.number <= self._heard:
                return
            self._heard = reply.number
            if reply.WhichOneof("kind") == "joined":
                self._joined = reply.joined
                self._ready = stream
                self._changed.notify_all()
        self._on_reply(reply)


class _Refused(PsError):
    """A refusal by the coordinator, which is no stream that broke."""

    def __init__(self, why: PsError, *, answers: bool) -> None:
        """`answers`: it is the answer to the first message of the stream."""
        super().__init__(why.message)
        self.why = why
        self.to_resume = answers and why.retryable
