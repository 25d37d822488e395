"""A worker's membership of a job: the join, tables, heartbeats, the end.

What it says and hears goes over `member_stream`; the user's thread waits for the reply that it needs. A
failure is kept and handed to `on_failure` once.

`_changed` guards what the replies set. `_handing` is held while the promise or the rounds, which outlive an
incarnation, get what came for this one; they get nothing once it is abandoned.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ps_wire.errors import (
    ConnectionLost,
    PsError,
    RolledBack,
    StartLimitExceeded,
)
from ps_wire.frames.frame import PROTOCOL
from ps_wire.frames.messages import table_to_proto
from ps_wire.frames.service import Service
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from ps_worker.membership.coordinator_calls import CoordinatorCalls
from ps_worker.membership.member_stream import MemberStream
from ps_worker.membership.round_barrier import RoundBarrier
from ps_worker.membership.snapshot_promise import SnapshotPromise
from ps_worker.process import stopping
from ps_worker.process.exit_reason import sendable
from ps_worker.process.farewell import UNHURRIED, Farewell
from ps_worker.process.retry import ON_ITS_WAY, PAUSE_S, Retry
from ps_worker.process.waiting import waits
from ps_worker.settings import Settings

LEAVE_LIMIT_S = 5.0


class Membership:
    """The place of one incarnation in its job, from its join to its end.

    Attributes:
        calls: what is asked beside the stream.
        joined: as whom this worker is in the job.
        again: it was in the job before, and was evicted.
        live_wanted: a reader wants what lies outside tables, at the end of the next step.
        position_wanted: somebody who joins wants this worker's position, at the beginning of the next step.
    """

    def __init__(
        self,
        settings: Settings,
        service: Service,
        *,
        progress: Callable[[], pb.Progress],
        on_failure: Callable[[PsError], None],
        log: Callable[[str], None],
        promise: SnapshotPromise,
        rounds: RoundBarrier,
        renews: Callable[[], bool] | None = None,
    ) -> None:
        """Has not joined.

        Args:
            settings: of the worker.
            service: whose coordinator it talks to.
            progress: what a heartbeat brings.
            on_failure: called once, when the job cannot go on for it; not before it has joined.
            log: says something to the person at the terminal.
            promise: to snapshots.
            rounds: where the script is, for others who join.
            renews: whether heartbeats may renew the lease; None: always.
        """
        self._renews = renews
        self._settings = settings
        self._service = service
        self._progress = progress
        self._on_failure = on_failure
        self._log = log
        self._changed = threading.Condition()
        self._replies: dict[str, Any] = {}
        self._made: dict[int, pb.TableMade] = {}
        self._started: dict[int, int] = {}
        self._waiting_for = ""
        self._waiting = False
        self._error: PsError | None = None
        self._lost: ConnectionLost | None = None  # a shard: no table starts without it
        self._leaving = False
        self.live_wanted = self.position_wanted = False
        self._handing = threading.RLock()
        self._promise: SnapshotPromise | None = promise
        self._rounds: RoundBarrier | None = rounds
        self._stream: MemberStream | None = None
        self.joined = pb.Joined()
        self.again = False
        self.calls = CoordinatorCalls(
            settings, service, joined=lambda: self.joined, failed=lambda: self._error, log=log
        )

    @property
    def failure(self) -> PsError | None:
        """Why the job cannot go on for this incarnation; None: it can."""
        with self._changed:
            return self._error

    # -- joining ---------------------------------------------------------------------------------------

    @waits("the coordinator to let this worker in")
    def join(self, evicted: pb.Joined | None = None) -> pb.Joined:
        """Joins the job and starts the heartbeats.

        Args:
            evicted: as whom this process was in the job before; it wants the same number.

        Raises:
            Unavailable: the coordinator was not there, or not all shards were, within the connect limit.
            PsError: what the coordinator refuses with.
        """
        self.again = evicted is not None
        retry = Retry(self._settings.connect_limit_s, pauses_s=(PAUSE_S,), from_now=True)
        retry.call(lambda: self._join_once(evicted), again=lambda error: isinstance(error, ON_ITS_WAY))
        return self.joined

    def _join_once(self, evicted: pb.Joined | None) -> None:
        settings = self._settings
        self._error = None
        alone = not settings.servers
        join = pb.Join(
            protocol=PROTOCOL,
            job=spec_pb2.Job(
                name=settings.job,
                consistency=str(settings.consistency),
                num_workers=settings.num_workers,
                min_workers=settings.min_workers,
                nonfinite=settings.nonfinite,
            ),
            worker=settings.worker if evicted is None else evicted.worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            lease_s=0.0 if alone else settings.lease_s,
            evicted=0 if evicted is None else evicted.incarnation,
            ranks=settings.data_ranks.size,
        )
        if self._stream is not None:
            self._stream.close(cancel=True)
        self._stream = MemberStream(
            self._service,
            join=join,
            retry_limit_s=0.0 if alone else settings.retry_limit_s,
            progress=self._progress,
            on_reply=self._receive,
            fail=self._fail,
            log=self._log,
            renews=self._renews,
        )
        self._stream.start()
        # One that holds the number may be gone, and is waited for as long as its lease may be.
        self._wait("joined", max(settings.connect_limit_s, 2 * settings.lease_s))

    # -- tables ----------------------------------------------------------------------------------------

    def make_table(self, spec: TableSpec) -> None:
        """Says that this worker makes a table; does not wait."""
        self._send(make_table=pb.MakeTable(table=table_to_proto(spec)))

    @waits("a table to be made")
    def wait_made(self, table: int) -> pb.TableMade:
        """Waits until the shards have a table: whether this worker's weights start it, and how it is cut.

        Raises:
            StartLimitExceeded: naming who was missing.
            ConnectionLost: a shard is gone for longer than the retry limit.
        """
        self._wait_for(lambda: table in self._made, self._settings.start_limit_s)
        return self._made[table]

    def uploaded(self, table: int) -> None:
        """Says that the starter's weights are on the shards."""
        self._send(uploaded=pb.Uploaded(table=table))

    @waits("a table to start")
    def wait_started(self, table: int) -> int | None:
        """Waits until a table has started; returns this worker's first step.

        None: this worker's weights are to start it after all, for who was asked for them has gone.

        Raises:
            StartLimitExceeded: naming who was missing.
            ConnectionLost: a shard is gone for longer than the retry limit.
        """
        asked = self._uploads(table)
        self._wait_for(
            lambda: table in self._started or self._uploads(table) != asked,
            self._settings.start_limit_s,
        )
        return self._started.get(table)

    def _uploads(self, table: int) -> bool:
        return table in self._made and self._made[table].upload

    # -- state outside tables --------------------------------------------------------------------------

    def put_live(self, blob: bytes, step: int) -> None:
        """Hands in what a reader has asked for: the state outside tables, as it is at this step."""
        self.live_wanted = False
        self.calls.put_state("live", blob)
        self._send(uploaded=pb.Uploaded(live=True, step=step))

    def put_position(self, blob: bytes, step: int) -> None:
        """Hands in the position that one who joins has asked for."""
        self.position_wanted = False
        self.calls.put_state("position", blob)
        self._send(uploaded=pb.Uploaded(live=True, begins=True, step=step))

    def put_note(self, blob: bytes) -> None:
        """This worker's position, for who takes it up when it is gone."""
        self.calls.put_once(f"note/{self.joined.worker}", blob)

    def put_cut(self, number: int, blob: bytes) -> None:
        """Hands in what a snapshot has of this worker beside its tables."""
        try:
            self.calls.put_once(f"cut/{self.joined.worker}", blob)
        except PsError as error:  # a snapshot's trouble: this worker trains on
            self._log(f"a snapshot does not get this worker's state: {error}")
            return
        self._send(cut_captured=pb.CutCaptured(number=number))

    # -- the end ---------------------------------------------------------------------------------------

    @waits("the others to finish")
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
            self.calls.put_state("final", upload_final())
            self._send(uploaded=pb.Uploaded(final=True))
        ended: pb.Ended = self._wait("ended", None)
        return ended.has_state

    def whom(self) -> list[str]:
        """Who is waited for; see `CoordinatorCalls.behind`, for `PsError` too."""
        with self._changed:
            told = [f"waiting for {self._waiting_for}"] if self._waiting and self._waiting_for else []
        return told + self.calls.behind()

    def leave(
        self,
        reason: str,
        clocks: Mapping[int, int] | None = None,
        *,
        torn: bool = False,
        farewell: Farewell = UNHURRIED,
    ) -> None:
        """Leaves in order; waits for the answer at most `LEAVE_LIMIT_S`. May be called again.

        Args:
            reason: for people; empty: it is done.
            clocks: table -> steps that it has taken.
            torn: some partitions may have its last push, and others not: those count that are everywhere.
            farewell: time for all waits of the worker that leaves.
        """
        self._leaving = True
        if self._stream is None:
            return
        self._stream.quiet()
        leave = pb.Leave(
            reason=sendable(reason),
            progress=self._progress(),
            drained=stopping.asked(),
            clocks=clocks or {},
            torn=torn,
        )
        self._stream.say(leave=leave)
        with self._changed:
            self._changed.wait_for(
                lambda: "left" in self._replies or self._error, farewell.left_s(LEAVE_LIMIT_S)
            )
        self._stream.close()

    def abandon(self) -> None:
        """This incarnation was evicted: its stream ends, without a word."""
        self._leaving = True
        with self._handing:
            self._end_holds()
            self._promise = self._rounds = None  # what comes late is of no incarnation after this one
        if self._stream is not None:
            self._stream.close(cancel=True)

    def wait_threads(self, farewell: Farewell = UNHURRIED) -> None:
        """After `leave`, or a join that was refused: waits for the threads."""
        for thread in self._stream.threads if self._stream is not None else ():
            thread.join(farewell.left_s(LEAVE_LIMIT_S))

    # -- inside ----------------------------------------------------------------------------------------

    def _send(self, **message: Any) -> None:
        assert self._stream is not None
        self._stream.say(**message)

    def _receive(self, reply: pb.MemberReply) -> None:
        kind = reply.WhichOneof("kind")
        if kind in ("cut_prepare", "cut_armed", "cut_ended"):
            self._receive_cut(reply)
            return
        if kind in ("hold", "let_go"):
            self._receive_hold(reply)
            return
        with self._changed:
            match kind:
                case "table_made":
                    self._made[reply.table_made.table] = reply.table_made
                case "table_started":
                    self._started[reply.table_started.table] = reply.table_started.step
                case "waiting" if reply.waiting.whom != self._waiting_for:
                    self._waiting_for = reply.waiting.whom
                    self._log(f"waiting for {self._waiting_for}")
                case "notice":
                    self._log(reply.notice.text)
                case "upload_live":
                    self.position_wanted |= reply.upload_live.begins
                    self.live_wanted |= not reply.upload_live.begins
                case "rolled_back":
                    self._fail(RolledBack(reply.rolled_back.why, step=reply.rolled_back.step))
                case "joined" | "upload_final" | "ended" | "left":
                    self._replies[kind] = getattr(reply, kind)
                    # At once: a failure is handed on from now on, also before `join` comes to return.
                    self.joined = self._replies.get("joined", self.joined)
            self._changed.notify_all()

    def _receive_cut(self, reply: pb.MemberReply) -> None:
        with self._handing:
            self._hand_cut(reply, self._promise)

    def _hand_cut(self, reply: pb.MemberReply, promise: SnapshotPromise | None) -> None:
        match reply.WhichOneof("kind"):
            case "cut_prepare":
                number = reply.cut_prepare.number
                steps = promise.prepare(number, self.put_cut) if promise is not None else {}
                self._send(cut_ready=pb.CutReady(number=number, steps=steps))
            case "cut_armed" if promise is not None:
                promise.arm(reply.cut_armed.number, reply.cut_armed.steps)
            case "cut_ended" if promise is not None:
                promise.end(reply.cut_ended.number)

    def _receive_hold(self, reply: pb.MemberReply) -> None:
        with self._handing:
            self._hand_hold(reply, self._rounds)

    def _hand_hold(self, reply: pb.MemberReply, rounds: RoundBarrier | None) -> None:
        hold = reply.hold
        if reply.HasField("let_go"):
            if rounds is not None:
                rounds.let_go(reply.let_go.number)
        elif rounds is not None and hold.named:
            rounds.hold(hold.number, hold.beyond)
        else:
            steps = rounds.ask(hold.number, self._say_held) if rounds is not None else {}
            self._send(holding=pb.Holding(number=hold.number, steps=steps))

    def _say_held(self, number: int, steps: Mapping[int, int]) -> None:
        """This worker begins no round beyond these steps."""
        self._send(holding=pb.Holding(number=number, held=True, steps=steps))

    def _end_holds(self) -> None:
        with self._handing:
            if self._promise is not None:
                self._promise.end()
            if self._rounds is not None:
                self._rounds.let_go()

    def _fail(self, error: PsError) -> None:
        self._end_holds()
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            has_joined = bool(self.joined.incarnation)
            self._changed.notify_all()
        self.calls.end_wait()
        if has_joined and not self._leaving:
            self._on_failure(error)

    def lose(self, error: ConnectionLost) -> None:
        """A shard is gone for longer than the retry limit: no wait for a table's start goes on."""
        with self._changed:
            self._lost = self._lost or error
            self._changed.notify_all()

    def _wait(self, kind: str, limit_s: float | None) -> Any:
        self._wait_for(lambda: kind in self._replies, limit_s)
        return self._replies[kind]

    def _wait_for(self, ready: Callable[[], bool], limit_s: float | None) -> None:
        """Waits; `limit_s`: of a start, which a lost shard ends, too."""

        def failed() -> PsError | None:
            return self._error or (None if limit_s is None else self._lost)

        with self._changed:
            self._waiting = True
            try:
                done = self._changed.wait_for(lambda: ready() or failed() is not None, limit_s)
            finally:
                self._waiting = False
            if ready():
                return
            if not done:
                raise StartLimitExceeded(
                    f"job {self._settings.job} did not start within {limit_s:g} s (PS_START_LIMIT); "
                    f"waiting for {self._waiting_for or 'the coordinator'}",
                    waiting_for=self._waiting_for,
                )
            error = failed()
            assert error is not None
            raise error
