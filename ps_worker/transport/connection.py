"""A worker's data connection to one shard, over whichever carrier; made again when it breaks.

What was sent and not yet answered is the business of `exchange`: after a new HELLO, `replay` sends it again,
and the shard takes each push once. It must not know what frames mean beyond HELLO and REFUSE.

A shard that hangs keeps its sockets. Where nothing comes from it for a while, its process is asked; where
that does not answer either, the connection is ended, as if it had broken (`liveness`).

Threads: one receives; one watches; the carrier's own sends. `_lock` guards which outbox is the live one,
and is held over a replay, so that nothing new overtakes what is sent again. `_receiving` is held by the
receiving thread while frames come: as long as it may write or take what they bring. Sending only queues: a
payload is read when the carrier asks for the next frame, and its memory must stay as it is until the
shard's ACK.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from ps_wire.errors import (
    ConnectionLost,
    FrameRefused,
    InternalError,
    JobUnknown,
    PsError,
    ServerNotReady,
    ServerUnreachable,
    StrangerRefused,
)
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import MEMORY
from ps_wire.frames.messages import parse_message, refused_from_proto
from ps_wire.frames.service import DataStream, FramesOut, Service
from ps_wire.process import watched
from ps_wire.sockets.frame_socket import close_all
from ps_wire.v1 import coordinator_pb2, shard_pb2
from ps_worker.process.farewell import UNHURRIED, Farewell
from ps_worker.process.one_thread import receives_answers
from ps_worker.process.retry import Retry
from ps_worker.settings import Settings
from ps_worker.transport.carrier_choice import CarrierChoice
from ps_worker.transport.liveness import Liveness, is_silent
from ps_worker.transport.outbox import FrameOutbox
from ps_worker.transport.shard_addresses import ShardAddresses

ATTEMPT_LIMIT_S = 10.0  # for a shard to answer the first time
FIRST_LIMIT_S = 0.5  # once a connection broke; each try may take twice as long as the one before
AGAIN_LIMIT_S = 1.5  # but no longer than this: the shard may be back, elsewhere
SEEK_AFTER = 1  # tries; then the shard may have another address
MIN_ATTEMPT_LIMIT_S = 0.2  # for the last one, when the retry limit is all but over

logger = logging.getLogger("ps_worker")


class Peer(Protocol):
    """The owner of the frames that a connection carries."""

    def receive(self, frame: wire.Frame) -> None:
        """Takes a received frame; on the receiving thread."""
        ...

    def landing(self, frame: wire.Frame, payload_bytes: int) -> memoryview | None:
        """Where a payload that comes is to lie, see `service.Landing`; on the receiving thread."""
        ...

    def replay(self, shard: int) -> Iterable[wire.Frame]:
        """Gives what a new connection sends first: all that was sent and not answered, in order."""
        ...

    def fail(self, error: PsError) -> None:
        """The connection has ended for good."""
        ...


class Connection:
    """The connection of one incarnation to one shard. `send` is thread-safe."""

    def __init__(
        self,
        *,
        service: Service,
        carriers: CarrierChoice,
        shard: int,
        job: str,
        worker: int,
        incarnation: int,
        rank: int = 0,
        peer: Peer,
        retry_limit_s: float,
        log: Callable[[str], None],
        seek: Callable[[], None] = lambda: None,
        generation: int = 0,
    ) -> None:
        """Opens it.

        `seek` asks where shards are now; `generation` is the shard's, at least; `rank` is of this process in
        its group.
        """
        self._seek = seek
        self._service = service
        self._carriers = carriers
        self._shard = shard
        self._job = job
        self._worker = worker
        self._incarnation = incarnation
        self._rank = rank
        self._generation = generation
        self._peer = peer
        self._retry_limit_s = retry_limit_s
        self._log = log
        self._lock = threading.Lock()
        self._receiving = threading.Lock()
        self._outbox: FrameOutbox | None = None
        self._call: DataStream | None = None
        self._closing = threading.Event()
        self._quiet = threading.Event()
        self._liveness = Liveness(self._ask, lambda: is_silent(self._address))
        self._hung = False  # the connection was ended, for the shard did not answer
        self._thread = watched.thread(f"ps-shard-{shard}", self._run, log=logger, failed=self._fail)
        self._watcher = watched.endless_thread(
            f"ps-watch-{shard}", self._watch, log=logger, pause=self._closing.wait
        )
        try:
            self._thread.start()
            if MEMORY not in service.carriers:  # who is in this process hangs with it
                self._watcher.start()
        except BaseException:  # Ctrl-C: nobody has it who would close it
            self.close(0.0)
            raise

    @property
    def _address(self) -> str:
        return self._service.addresses[self._shard]

    @property
    def shard_name(self) -> str:
        """The shard, and its address, for people."""
        return f"shard {self._shard} at {self._address}"

    def is_lost(self, limit_s: float) -> bool:
        """Whether it is broken, or the shard's process does not answer: it is waited for, so long at most."""
        if self._closing.is_set():
            return False
        if self._outbox is None:
            return True
        try:
            self._ask(limit_s)
        except ServerUnreachable:
            return True
        except PsError:  # it answers, though with a refusal
            pass
        return False

    def send(self, *frames: wire.Frame) -> None:
        """Queues frames; while the connection is down nothing is queued, since `replay` will send them."""
        with self._lock:
            if self._outbox is not None:
                self._outbox.put(frames)

    def quiet(self) -> None:
        """The worker is about to leave: that a shard takes nothing of it any more is not said."""
        self._quiet.set()

    def close(self, drain_s: float = 2.0, farewell: Farewell = UNHURRIED) -> None:
        """Ends the connection once what is queued has left, or after `drain_s`; `farewell`: of the worker."""
        self._closing.set()
        with self._lock:
            live = self._outbox is not None
            if self._outbox is not None:
                self._outbox.close()
        if live:
            self._thread.join(farewell.left_s(drain_s))
        if self._call is not None:
            self._call.cancel()
        if self._thread.ident is not None:
            self._thread.join(farewell.left_s(drain_s))
        if self._watcher.ident is not None:
            self._watcher.join(farewell.left_s(drain_s))

    # -- the watching thread ---------------------------------------------------------------------------

    def _watch(self) -> None:
        while self._thread.is_alive() and not self._closing.wait(self._liveness.due_s):
            call = self._call
            if self._liveness.hangs() and call is not None and not self._closing.is_set():
                self._hung = True
                call.cancel()  # where it has been closed since then, nothing

    def _ask(self, limit_s: float) -> None:
        describe = self._service.shard(self._shard).Describe
        describe(shard_pb2.DescribeRequest(), timeout=limit_s, wait_for_ready=True)

    def wait_received(self, limit_s: float) -> bool:
        """After `close`: waits until nothing that has come is written or taken any more; whether it is so."""
        if not self._receiving.acquire(timeout=limit_s):
            return False
        self._receiving.release()
        return True

    # -- the receiving thread --------------------------------------------------------------------------

    def _run(self) -> None:
        receives_answers()
        retry = Retry(self._retry_limit_s, wait=self._closing.wait)
        while not self._closing.is_set():
            try:
                for frame in self._connected(self._left_s(retry)):
                    self._liveness.hear()
                    retry.work()
                    if frame.kind is wire.Kind.REFUSE:
                        self._peer.fail(refusal(frame))
                        return
                    try:
                        self._peer.receive(frame)
                    finally:
                        close_all(frame.descriptors)
                reason = ConnectionLost(f"shard {self._shard} at {self._address} ended the stream")
            except PsError as error:
                if self._is_end(error):
                    self._peer.fail(error)
                    return
                reason = ConnectionLost(error.message)
            except Exception as error:
                logger.exception("bug while taking a frame of shard %d", self._shard)
                self._peer.fail(InternalError.of(error))
                return
            finally:
                with self._lock:
                    self._outbox = None
            if self._closing.is_set():
                return
            if not retry.fail():
                self._peer.fail(
                    ConnectionLost(
                        f"shard {self._shard} at {self._address} is gone since "
                        f"{self._retry_limit_s:g} s (PS_RETRY_LIMIT): {reason.message}",
                        address=self._address,
                        shard=self._shard,
                    )
                )
                return
            self._pause(retry)

    def _fail(self, bug: Exception) -> None:
        self._peer.fail(InternalError.of(bug))

    def _pause(self, retry: Retry) -> None:
        """Before the next try."""
        retry.pause(self._say_broken)
        if retry.attempt > SEEK_AFTER:
            self._seek()

    def _say_broken(self) -> None:
        if self._quiet.is_set():
            return
        shard = self.shard_name
        hung = f"{shard} does not answer: its process hangs, or nothing reaches it any more"
        self._log(f"{hung if self._hung else f'connection to {shard} broke'}; trying again")
        self._hung = False

    def _is_end(self, error: PsError) -> bool:
        """Whether no other connection can help.

        Where a shard does not know the job, the coordinator says what becomes of that: it has come back and
        does not know it yet, or the job has gone.
        """
        named = type(error) is not PsError  # else a status of the carrier's own: a broken stream
        waits = error.retryable or isinstance(error, JobUnknown)
        return named and not waits and not self._closing.is_set()

    def _left_s(self, retry: Retry) -> float:
        """Seconds that the next try may wait for the shard: not for long where it may be elsewhere."""
        again_s = min(FIRST_LIMIT_S * 2.0**retry.attempt, AGAIN_LIMIT_S)
        longest_s = again_s if retry.failing else ATTEMPT_LIMIT_S
        return min(longest_s, max(retry.left_s, MIN_ATTEMPT_LIMIT_S))

    def _connected(self, limit_s: float) -> Iterator[wire.Frame]:
        """Makes one connection and yields what it brings, from the shard's HELLO on."""
        request = shard_pb2.OpenRequest(
            job=self._job, worker=self._worker, incarnation=self._incarnation, rank=self._rank
        )
        outbox: FrameOutbox | None = None

        def introduce() -> tuple[shard_pb2.OpenReply, FramesOut]:
            nonlocal outbox
            opened = self._service.shard(self._shard).Open(request, timeout=limit_s, wait_for_ready=True)
            if outbox is not None:
                outbox.close()  # of a carrier that did not reach the shard
            self._check_generation(opened.generation)
            outbox = FrameOutbox(self._hello(opened.token))
            return opened, outbox

        self._call = call = self._carriers.stream(
            self._shard, introduce=introduce, landing=self._peer.landing
        )
        assert outbox is not None
        try:
            with self._receiving:
                greeted = False
                for frame in call:
                    if frame.kind is wire.Kind.HELLO:
                        greeted = True
                        self._go_live(outbox)
                    elif frame.kind is wire.Kind.REFUSE and not greeted:  # it may be for now only
                        raise _for_now(refusal(frame))
                    yield frame
        finally:
            outbox.close()
            call.close()

    def _check_generation(self, generation: int) -> None:
        """A shard's generation only grows: an older one is a process whose place another has taken."""
        if generation < self._generation:
            raise ServerNotReady(
                f"the process at {self._address} is shard {self._shard} of generation {generation}; the live "
                f"one is of {self._generation}",
                shard=self._shard,
            )
        self._generation = generation

    def _hello(self, token: bytes) -> wire.Frame:
        return wire.Frame(
            kind=wire.Kind.HELLO,
            worker=self._worker,
            rank=self._rank,
            incarnation=self._incarnation,
            generation=self._generation,
            meta=token + self._job.encode(),
        )

    def _go_live(self, outbox: FrameOutbox) -> None:
        with self._lock:
            outbox.put(list(self._peer.replay(self._shard)))
            if self._closing.is_set():  # close() came first and found no outbox to end
                outbox.close()
            self._outbox = outbox


def open_all(
    settings: Settings,
    service: Service,
    carriers: CarrierChoice,
    addresses: ShardAddresses,
    *,
    joined: coordinator_pb2.Joined,
    peer: Peer,
    log: Callable[[str], None],
) -> Iterator[Connection]:
    """Opens a connection of this process to every shard, where it is now, one after the other.

    Args:
        settings: of the worker.
        service: with its servers.
        carriers: which of them data take.
        addresses: of the shards.
        joined: as whom the worker is in its job.
        peer: of all of them.
        log: says something to the person at the terminal.
    """
    shards = joined.shards
    addresses.update([shard.address for shard in shards])
    generations = [shard.generation for shard in shards] or [0] * len(service.addresses)
    for shard, generation in enumerate(generations):
        yield Connection(
            service=service,
            carriers=carriers,
            shard=shard,
            job=settings.job,
            worker=joined.worker,
            incarnation=joined.incarnation,
            rank=settings.ranks.rank,
            peer=peer,
            retry_limit_s=settings.retry_limit_s,
            log=log,
            seek=addresses.seek,
            generation=generation,
        )


def _for_now(error: PsError) -> PsError:
    """Lets a refusal of HELLO end this connection alone: the shard may have been started again."""
    return ConnectionLost(error.message) if isinstance(error, StrangerRefused) else error


def refusal(frame: wire.Frame) -> PsError:
    """The error in a REFUSE frame."""
    refused = parse_message(coordinator_pb2.Refused, bytes(frame.meta))
    if not refused.error:
        return FrameRefused("a shard refused a frame without saying why")
    return refused_from_proto(refused)
