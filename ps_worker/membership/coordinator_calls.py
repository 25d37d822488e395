"""Calls of a member to the coordinator beside its stream: state outside tables, shares, who is behind.

It must not know the stream; whoever has it says when no answer will come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import torch

from ps_wire.errors import CallLimitExceeded, JobUnknown, PsError, ServerNotReady, ServerUnreachable
from ps_wire.frames.messages import state_parts
from ps_wire.frames.service import Service
from ps_wire.text import one_line
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.model import model_table
from ps_worker.process.retry import PAUSE_S, Retry
from ps_worker.process.waiting import waits
from ps_worker.settings import Settings

CALL_LIMIT_S = 60.0
STATUS_LIMIT_S = 2.0
MAX_NAMED = 4  # in one line, of those who are waited for
LIVE_LIMIT_S = 60.0  # for the position of a worker that trains, or its last note

Result = TypeVar("Result")


class CoordinatorCalls:
    """Calls as one member, made again while the coordinator is on its way back."""

    def __init__(
        self,
        settings: Settings,
        service: Service,
        *,
        joined: Callable[[], pb.Joined],
        failed: Callable[[], PsError | None],
        log: Callable[[str], None],
    ) -> None:
        """Asks nothing yet.

        Args:
            settings: of the worker.
            service: whose coordinator is asked.
            joined: as whom it is in the job.
            failed: why the job cannot go on for it; None: it can. Once it cannot, `end_wait` must follow.
            log: says something to the person at the terminal.
        """
        self._settings = settings
        self._service = service
        self._joined = joined
        self._failed = failed
        self._log = log
        self._lock = threading.Lock()  # guards the call that waits
        self._waiting_call: Any = None

    def put_state(self, name: str, blob: bytes) -> None:
        """Keeps bytes on the coordinator, for the others."""
        self._ask(lambda: self.put_once(name, blob))

    def put_once(self, name: str, blob: bytes) -> None:
        """As `put_state`, where nobody is to wait for a coordinator that is gone."""
        key = self._key(name)

        def chunks() -> Iterator[pb.StateChunk]:
            yield pb.StateChunk(key=key, size=len(blob))
            for part in state_parts(blob):
                yield pb.StateChunk(data=part)

        self._service.coordinator.PutState(chunks(), timeout=CALL_LIMIT_S)

    def get_state(self, name: str) -> bytes:
        """Bytes that a worker has put.

        Raises:
            JobUnknown: nobody has.
        """
        return self._get_state(name, CALL_LIMIT_S)

    def kept(self, table: int) -> dict[str, torch.Tensor]:
        """Fetches what the job keeps with a table: as it was at the end, or at the start."""
        with suppress(JobUnknown):
            return model_table.unpack(self.get_state("final"), f"{table}/")
        with suppress(JobUnknown):
            return model_table.unpack(self.get_state(f"start/{table}"))
        return {}  # the job was restored, from a snapshot in which no worker had anything else

    def saved(self) -> dict[str, torch.Tensor]:
        """Fetches what this worker had beside its tables at the snapshot that the job goes on from."""
        try:
            return model_table.unpack(self.get_state(f"snapshot/{self._joined().worker}"))
        except JobUnknown:
            return {}

    def _get_state(self, name: str, limit_s: float) -> bytes:
        return self._get_noted(name, limit_s)[0]

    def _get_noted(self, name: str, limit_s: float) -> tuple[bytes, dict[int, int]]:
        request = pb.GetStateRequest(key=self._key(name))

        def get() -> tuple[bytes, dict[int, int]]:
            clocks: dict[int, int] = {}
            parts = []
            for chunk in self._service.coordinator.GetState(request, timeout=limit_s):
                clocks.update(chunk.clocks)
                parts.append(chunk.data)
            return b"".join(parts), clocks

        return self._ask(get)

    def _ask(self, call: Callable[[], Result]) -> Result:
        """Makes a call; again while the coordinator is on its way back, as long as streams are made again.

        Raises:
            PsError: as the call; or this worker's failure that came meanwhile.
        """
        retry = Retry(self._settings.retry_limit_s, pauses_s=(PAUSE_S,), from_now=True)
        return retry.call(call, again=self._may_come_back)

    def _may_come_back(self, error: PsError) -> bool:
        if not isinstance(error, (ServerNotReady, ServerUnreachable)):
            return False
        if (failure := self._failed()) is not None:
            raise failure from None
        return bool(self._settings.servers)

    @waits("the position of a worker that trains")
    def position(self, *, live: bool) -> tuple[dict[str, torch.Tensor], dict[int, int]]:
        """Where the job is: what a worker had, at the beginning of a step, beside its tables.

        Of the lowest one that trains; where nobody does, of the one that had come furthest.

        Args:
            live: waits for it to begin a step; else what it has noted last.

        Returns:
            Tensors by name, none where nobody has any; and table -> steps of that worker which count, where
            it is gone.
        """
        try:
            blob, clocks = self._get_noted("live" if live else "noted", LIVE_LIMIT_S)
        except ServerUnreachable:
            self._log("the coordinator gives no position of the job: this worker begins as at the start")
            return {}, {}
        return (model_table.unpack(blob) if blob else {}), clocks

    def begin_epoch(self, epoch: int, *, loop: int, stop: int) -> pb.EpochReply:
        """This worker's loop of that number is about to begin an epoch; it ends before epoch `stop`."""
        begin = self._service.coordinator.BeginEpoch
        request = pb.EpochRequest(epoch=epoch, loop=loop, stop=stop, **self._who())
        reply: pb.EpochReply = self._ask(lambda: begin(request, timeout=CALL_LIMIT_S, wait_for_ready=True))
        return reply

    def stop_job(self, reason: str) -> pb.EpochReply:
        """The job is to end, for all workers after the same epoch."""
        stop = self._service.coordinator.StopJob
        request = pb.StopRequest(reason=reason, **self._who())
        reply: pb.EpochReply = self._ask(lambda: stop(request, timeout=CALL_LIMIT_S, wait_for_ready=True))
        return reply

    @waits("the others to make the same call")
    def collect(self, request: pb.CollectRequest, *, until_s: float, limit_s: float) -> pb.CollectReply:
        """A call that all workers make together: its outcome, or steps that others need of this worker first.

        Args:
            request: what is asked; who asks is filled in.
            until_s: when the wait for others ends, on the monotonic clock.
            limit_s: seconds, for people.

        Raises:
            CallLimitExceeded: the others have not made it in time; who was missing is named.
            PsError: what the coordinator refuses with, or why the job cannot go on.
        """
        collect = self._service.coordinator.Collect
        while True:
            request.MergeFrom(pb.CollectRequest(**self._who()))
            reply: pb.CollectReply = self._ask(
                lambda: collect(request, timeout=CALL_LIMIT_S, wait_for_ready=True)
            )
            if reply.done or not request.HasField("number"):
                return reply
            if (failure := self._failed()) is not None:
                raise failure
            if reply.steps:
                return reply
            if time.monotonic() >= until_s:
                raise CallLimitExceeded(
                    f"{request.form} was not made by all workers within {limit_s:g} s; missing: "
                    f"{one_line(reply.missing)}",
                    missing=one_line(reply.missing),
                )

    @waits("the state of a worker")
    def wait_state(self, name: str, at_least: bytes, limit_s: float) -> bool:
        """Waits until a worker has put bytes that are not less; returns whether that was within the limit.

        Raises:
            PsError: the job cannot go on.
        """
        request = pb.GetStateRequest(key=self._key(name), at_least=at_least)
        until_s = time.monotonic() + limit_s

        def wait() -> bool:
            left_s = max(until_s - time.monotonic(), 0.0)
            with self._lock:
                if (failure := self._failed()) is not None:
                    raise failure
                call = self._waiting_call = self._service.coordinator.GetState(request, timeout=left_s)
            try:
                for _ in call:
                    pass
            except PsError:
                if (failure := self._failed()) is not None:
                    raise failure from None
                if time.monotonic() >= until_s:
                    return False
                raise
            return True

        return self._ask(wait)

    def end_wait(self) -> None:
        """There is a failure: whoever waits for state gets it."""
        with self._lock:
            if self._waiting_call is not None:
                self._waiting_call.cancel()

    def epochs(self) -> list[pb.EpochUse]:
        """Asks what became of the samples of the job's last epochs."""
        reply = self._service.coordinator.Status(pb.StatusRequest(), timeout=CALL_LIMIT_S)
        return [use for job in reply.jobs if job.job.name == self._settings.job for use in job.epochs]

    def behind(self) -> list[str]:
        """Who of the others has taken the fewest steps by what the coordinator has heard, for people.

        Raises:
            PsError: the coordinator does not answer in time.
        """
        reply = self._service.coordinator.Status(pb.StatusRequest(), timeout=STATUS_LIMIT_S)
        others = [
            entry
            for job in reply.jobs
            if job.job.name == self._settings.job
            for entry in job.workers
            if entry.state == "running" and entry.worker != self._joined().worker
        ]
        slowest = min((entry.progress.step for entry in others), default=0)
        return [
            f"waiting for worker {entry.worker}, clock {entry.progress.step}"
            + (f", lease {entry.lease_left_s:.1f} s left" if entry.lease_left_s >= 0 else "")
            for entry in others
            if entry.progress.step == slowest
        ][:MAX_NAMED]

    @waits("the coordinator to deal samples")
    def share(self, request: pb.ShareRequest) -> pb.ShareReply:
        """Asks what of an epoch of a loader this worker hands out next."""
        request.job, request.worker = self._settings.job, self._joined().worker
        request.incarnation = self._joined().incarnation
        share = self._service.coordinator.Share
        reply: pb.ShareReply = self._ask(lambda: share(request, timeout=CALL_LIMIT_S, wait_for_ready=True))
        return reply

    def use(self, request: pb.UseRequest) -> None:
        """How far this worker has come in what it hands out."""
        request.job, request.worker = self._settings.job, self._joined().worker
        request.incarnation = self._joined().incarnation
        use = self._service.coordinator.Use
        self._ask(lambda: use(request, timeout=CALL_LIMIT_S, wait_for_ready=True))

    def _key(self, name: str) -> pb.StateKey:
        return pb.StateKey(name=name, **self._who())

    def _who(self) -> dict[str, Any]:
        joined = self._joined()
        return {"job": self._settings.job, "worker": joined.worker, "incarnation": joined.incarnation}
