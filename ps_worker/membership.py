"""A worker's membership of a job: the join, tables, heartbeats, the end.

One bidirectional stream to the coordinator. A thread takes its replies; the user's thread waits for the one
it needs. A failure is kept and handed to `on_failure` once.

`_changed` guards what the replies set.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ps_wire.errors import ConnectionLost, PsError, ServerNotReady, StartLimitExceeded
from ps_wire.frame import PROTOCOL
from ps_wire.messages import refused_from_proto, table_to_proto
from ps_wire.service import Service
from ps_wire.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from ps_worker.reason import sendable
from ps_worker.settings import Settings

HEARTBEAT_S = 1.0
RETRY_S = 0.2
STATE_CHUNK_BYTES = 1 << 20
CALL_LIMIT_S = 60.0
LEAVE_LIMIT_S = 5.0


class Membership:
    """See the module's docstring."""

    def __init__(
        self,
        settings: Settings,
        service: Service,
        *,
        progress: Callable[[], pb.Progress],
        on_failure: Callable[[PsError], None],
        log: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._service = service
        self._progress = progress
        self._on_failure = on_failure
        self._log = log
        self._changed = threading.Condition()
        self._replies: dict[str, Any] = {}
        self._made: dict[int, bool] = {}
        self._started: dict[int, int] = {}
        self._waiting_for = ""
        self._error: PsError | None = None
        self._waiting_call: Any = None
        self._leaving = False
        self.live_wanted = False  # a reader wants what lies outside tables, at the next step
        self._outbox: queue.SimpleQueue[pb.MemberRequest | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.joined = pb.Joined()

    # -- joining ---------------------------------------------------------------------------------------

    def join(self) -> pb.Joined:
        """Joins the job and starts the heartbeats.

        Raises:
            ServerNotReady: shards were not registered within the connect limit.
            PsError: what the coordinator refuses with.
        """
        until_s = time.monotonic() + self._settings.connect_limit_s
        while True:
            try:
                self._join_once()
                break
            except ServerNotReady:
                if time.monotonic() > until_s:
                    raise
                time.sleep(RETRY_S)
        self._start_thread("ps-heartbeat", self._beat)
        return self.joined

    def _join_once(self) -> None:
        settings = self._settings
        self._error = None
        self._outbox = queue.SimpleQueue()
        self._send(
            join=pb.Join(
                protocol=PROTOCOL,
                job=spec_pb2.Job(
                    name=settings.job,
                    consistency=str(settings.consistency),
                    num_workers=settings.num_workers,
                    nonfinite=settings.nonfinite,
                ),
                worker=settings.worker,
                host=socket.gethostname(),
                pid=os.getpid(),
            )
        )
        call = self._service.coordinator.Member(_each_once(self._outbox))
        self._start_thread("ps-member", lambda: self._read(call))
        self.joined = self._wait("joined", settings.connect_limit_s)

    # -- tables ----------------------------------------------------------------------------------------

    def make_table(self, spec: TableSpec) -> None:
        """Says that this worker makes a table; does not wait."""
        self._send(make_table=pb.MakeTable(table=table_to_proto(spec)))

    def wait_made(self, table: int) -> bool:
        """Waits until the shards have a table; returns whether this worker's weights start it."""
        self._wait_for(lambda: table in self._made, self._settings.start_limit_s)
        return self._made[table]

    def uploaded(self, table: int) -> None:
        """Says that the starter's weights are on the shards."""
        self._send(uploaded=pb.Uploaded(table=table))

    def wait_started(self, table: int) -> int:
        """Waits until a table has started; returns this worker's first step.

        Raises:
            StartLimitExceeded: naming who was missing.
        """
        self._wait_for(lambda: table in self._started, self._settings.start_limit_s)
        return self._started[table]

    # -- state -----------------------------------------------------------------------------------------

    def put_state(self, name: str, blob: bytes) -> None:
        """Keeps bytes on the coordinator, for the others."""
        key = self._key(name)

        def chunks() -> Iterator[pb.StateChunk]:
            yield pb.StateChunk(key=key)
            for start in range(0, len(blob), STATE_CHUNK_BYTES):
                yield pb.StateChunk(data=blob[start : start + STATE_CHUNK_BYTES])

        self._service.coordinator.PutState(chunks(), timeout=CALL_LIMIT_S)

    def put_live(self, blob: bytes, step: int) -> None:
        """What a reader has asked for: the state outside tables, as it is at this step."""
        self.live_wanted = False
        self.put_state("live", blob)
        self._send(uploaded=pb.Uploaded(live=True, step=step))

    def get_state(self, name: str) -> bytes:
        """Bytes that a worker has put.

        Raises:
            JobUnknown: nobody has.
        """
        request = pb.GetStateRequest(key=self._key(name))
        chunks = self._service.coordinator.GetState(request, timeout=CALL_LIMIT_S)
        return b"".join(chunk.data for chunk in chunks)

    def wait_state(self, name: str, at_least: bytes, limit_s: float) -> bool:
        """Waits until a worker has put bytes that are not less; returns whether that was within the limit.

        Raises:
            PsError: the job cannot go on.
        """
        request = pb.GetStateRequest(key=self._key(name), at_least=at_least)
        until_s = time.monotonic() + limit_s
        with self._changed:
            if self._error is not None:
                raise self._error
            call = self._waiting_call = self._service.coordinator.GetState(request, timeout=limit_s)
        try:
            for _ in call:
                pass
        except PsError:
            if self._error is not None:
                raise self._error from None
            if time.monotonic() >= until_s:
                return False
            raise
        return True

    def _key(self, name: str) -> pb.StateKey:
        return pb.StateKey(
            job=self._settings.job,
            worker=self.joined.worker,
            incarnation=self.joined.incarnation,
            name=name,
        )

    # -- the end ---------------------------------------------------------------------------------------

    def finish(self, upload_final: Callable[[], bytes]) -> bool:
        """Says that this worker has no more data and waits for the others.

        Args:
            upload_final: gives the last state outside tables, if this worker is the one who is asked.

        Returns:
            Whether the job keeps such a state.
        """
        self._send(finish=pb.Finish(progress=self._progress()))
        self._wait_for(lambda: bool(self._replies.keys() & {"upload_final", "ended"}), None)
        if "ended" not in self._replies:
            self.put_state("final", upload_final())
            self._send(uploaded=pb.Uploaded(final=True))
        ended: pb.Ended = self._wait("ended", None)
        return ended.has_state

    def leave(self, reason: str) -> None:
        """Leaves in order; waits for the answer at most `LEAVE_LIMIT_S`. May be called again."""
        self._leaving = True
        self._stop.set()
        self._send(leave=pb.Leave(reason=sendable(reason), progress=self._progress()))
        with self._changed:
            self._changed.wait_for(lambda: "left" in self._replies or self._error, LEAVE_LIMIT_S)
        self._outbox.put(None)

    def wait_threads(self) -> None:
        """After `leave` and the end of the service: waits for the threads."""
        for thread in self._threads:
            thread.join(LEAVE_LIMIT_S)

    # -- inside ----------------------------------------------------------------------------------------

    def _start_thread(self, name: str, body: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=body, name=name, daemon=True))
        self._threads[-1].start()

    def _send(self, **message: Any) -> None:
        self._outbox.put(pb.MemberRequest(**message))

    def _beat(self) -> None:
        number = 0
        while not self._stop.wait(HEARTBEAT_S):
            number += 1
            self._send(heartbeat=pb.Heartbeat(number=number, progress=self._progress()))

    def _read(self, call: Iterator[pb.MemberReply]) -> None:
        try:
            for reply in call:
                self._take(reply)
            error: PsError = ConnectionLost(
                f"the coordinator at {self._service.addresses[0]} ended the stream"
            )
        except PsError as broken:
            error = broken
        self._fail(error)

    def _take(self, reply: pb.MemberReply) -> None:
        kind = reply.WhichOneof("kind")
        with self._changed:
            match kind:
                case "refused":
                    raise refused_from_proto(reply.refused)
                case "table_made":
                    self._made[reply.table_made.table] = reply.table_made.upload
                case "table_started":
                    self._started[reply.table_started.table] = reply.table_started.step
                case "waiting" if reply.waiting.whom != self._waiting_for:
                    self._waiting_for = reply.waiting.whom
                    self._log(f"waiting for {self._waiting_for}")
                case "notice":
                    self._log(reply.notice.text)
                case "upload_live":
                    self.live_wanted = True
                case "joined" | "upload_final" | "ended" | "left":
                    self._replies[kind] = getattr(reply, kind)
            self._changed.notify_all()

    def _fail(self, error: PsError) -> None:
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            if self._waiting_call is not None:
                self._waiting_call.cancel()
            self._changed.notify_all()
        if self.joined.incarnation and not self._leaving:
            self._on_failure(error)

    def _wait(self, kind: str, limit_s: float | None) -> Any:
        self._wait_for(lambda: kind in self._replies, limit_s)
        return self._replies[kind]

    def _wait_for(self, ready: Callable[[], bool], limit_s: float | None) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: ready() or self._error is not None, limit_s)
            if ready():
                return
            if not done:
                raise StartLimitExceeded(
                    f"job {self._settings.job} did not start within {limit_s:g} s (PS_START_LIMIT); "
                    f"waiting for {self._waiting_for or 'the coordinator'}",
                    waiting_for=self._waiting_for,
                )
            assert self._error is not None
            raise self._error


def _each_once(outbox: queue.SimpleQueue[pb.MemberRequest | None]) -> Iterator[pb.MemberRequest]:
    """What is queued, until None. After a Ctrl-C the user's thread queues again what may be there already."""
    said: set[tuple[str | None, bytes]] = set()
    while (message := outbox.get()) is not None:
        kind = message.WhichOneof("kind")
        named = kind == "make_table" or (kind == "uploaded" and not message.uploaded.live)
        key = kind, message.SerializeToString(deterministic=True) if named else b""
        if (named or kind in ("finish", "leave")) and key in said:
            continue
        said.add(key)
        yield message
