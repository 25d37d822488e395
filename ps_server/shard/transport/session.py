"""One connection of one rank: its HELLO, then its frames, each to its table; errors go back as REFUSE.

Each rank of a worker has one live connection to a shard: its new HELLO retires its session before, so that a
frame that was still on its way on a broken connection never takes the place of what the new one asked for.

It knows frames and the shard, not the carrier underneath. `_lock` is held while a frame is taken and guards
`_retired`: once `retire` returns, no frame of that connection is taken any more. It is not held while a peer
has too much to read, so nobody waits for such a peer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from ps_server.log import logger
from ps_server.shard.shard import Shard
from ps_server.shard.table.table import ShardTable
from ps_server.shard.transport.behind import Behind
from ps_server.shard.transport.shared_regions import SharedRegions, halves_of
from ps_wire.errors import (
    Evicted,
    FrameMalformed,
    FrameRefused,
    InternalError,
    JobUnknown,
    PsError,
    StaleIncarnation,
    StrangerRefused,
)
from ps_wire.frames import frame as wire
from ps_wire.frames import meta
from ps_wire.frames.carrier import MEMORY, Carrier, Message, Outlet
from ps_wire.frames.messages import refused_to_proto
from ps_wire.process import trace
from ps_wire.sockets.frame_socket import close_all

PULLED_TOGETHER = 8  # partitions of a list, before it is looked again whether the peer reads


class Session:
    """A `Receiver`. The first frame must be HELLO: worker, rank, incarnation, meta = token, job's name.

    Attributes:
        carrier: that its frames come over, for people.
        received_bytes: payload of the frames that were taken, also where it was shared and did not travel.
    """

    def __init__(
        self,
        shard: Shard,
        outlet: Outlet,
        *,
        token_bytes: int,
        carrier: str = MEMORY,
    ) -> None:
        self.carrier = carrier
        self.received_bytes = 0
        self._shard = shard
        self._regions: SharedRegions | None = None
        self._outlet = outlet
        self._token_bytes = token_bytes
        self._job: str | None = None
        self._worker = self._rank = 0
        self._incarnation = 0
        self._lent: set[int] = set()  # tables
        self._lock = threading.Lock()
        self._retired = False

    @property
    def authenticated(self) -> bool:
        """Whether HELLO was accepted."""
        return self._job is not None

    @property
    def sent_bytes(self) -> int:
        """See `Outlet`."""
        return self._outlet.sent_bytes

    @property
    def queued_bytes(self) -> int:
        """See `Outlet`."""
        return self._outlet.queued_bytes

    def receive(self, frame: wire.Frame, behind: Behind | None = None) -> bool:
        """See `Receiver.receive`.

        Args:
            frame: to be taken.
            behind: what has come behind it. What of that asks for weights which a push makes at once is
                taken with the push.
        """
        try:
            for part in _parts(frame):
                self._outlet.wait_room()
                with self._lock:
                    if self._retired or not self._receive(part, behind):
                        return False
            return True
        finally:
            close_all(frame.descriptors)

    def refuse(self, error: PsError) -> None:
        """See `Receiver.refuse`."""
        with self._lock:
            if not self._retired:
                self._refuse(wire.Frame(kind=wire.Kind.REFUSE), error)

    def retire(self) -> None:
        """Takes no more frames; waits for the one that is being taken."""
        with self._lock:
            self._retired = True

    def sever(self) -> None:
        """Ends the connection at once, and lets go of what the worker shared. Never blocks."""
        self._outlet.sever()

    @trace.traced("take a frame")
    def _receive(self, frame: wire.Frame, behind: Behind | None) -> bool:
        try:
            if self._job is None:
                self._hello(frame)
            else:
                return self._dispatch(frame, self._job, behind)
        except PsError as error:
            self._refuse(frame, error)
            return self.authenticated
        except Exception as error:  # noqa: BLE001 - the worker is told
            logger.exception("job %s worker %d: bug while taking a frame", self._job, self._worker)
            self._refuse(frame, InternalError.of(error))
            return False
        return True

    def closed(self) -> None:
        """See `Receiver.closed`."""
        if self._job is not None:
            self._shard.traffic.leave(self)
            self._shard.forget(self._job, self._worker, self, self._outlet, self._rank)
            self._shard.complaints.end(self._peer)

    @property
    def _peer(self) -> str:
        """As the log names it; strangers share their lines there."""
        if self._job is None:
            return "a stranger"
        rank = f" rank {self._rank}" if self._rank else ""
        return f"job {self._job} worker {self._worker}{rank}"

    def _hello(self, frame: wire.Frame) -> None:
        if frame.kind is not wire.Kind.HELLO:
            raise StrangerRefused(f"a connection starts with HELLO, not {frame.kind.name}")
        said = bytes(frame.meta)
        token, name = said[: self._token_bytes], said[self._token_bytes :]
        job = name.decode("ascii", errors="replace")
        self._shard.check_generation(frame.generation)
        self._shard.use_token(job, frame.worker, frame.incarnation, token, frame.rank)
        if frame.flags & wire.SHARED:
            self._outlet = self._regions = SharedRegions(self._outlet)
            self.carrier = Carrier.SHM
        before = self._shard.replace_session(job, frame.worker, frame.incarnation, self, frame.rank)
        self._job, self._incarnation = job, frame.incarnation
        self._worker, self._rank = frame.worker, frame.rank
        self._shard.traffic.enter(self)
        if before is not None:
            before.retire()
        hello = wire.Frame(
            kind=wire.Kind.HELLO,
            worker=frame.worker,
            rank=frame.rank,
            incarnation=frame.incarnation,
            generation=self._shard.generation,
        )
        self._outlet.send(Message(hello))

    def _dispatch(self, frame: wire.Frame, job: str, behind: Behind | None) -> bool:
        """Takes a frame; False: the connection is of no use any more."""
        if frame.worker != self._worker:
            raise StrangerRefused(f"this connection is worker {self._worker}'s, not {frame.worker}'s")
        if frame.rank != self._rank:
            raise StrangerRefused(f"this connection is rank {self._rank}'s, not {frame.rank}'s")
        if frame.incarnation != self._incarnation:
            raise StaleIncarnation(
                f"this connection is incarnation {self._incarnation}'s, not {frame.incarnation}'s"
            )
        member = self._shard.is_member(job, self._worker, self._incarnation)
        table = self._shard.table(job, frame.table)
        if frame.kind is wire.Kind.SHARE:
            return self._share(frame, table)
        taken = [frame]
        if self._regions is not None:
            taken = self._regions.filled(frame)
        elif member and self._says_pulls(frame):
            self._lend(table)
        copies = self._regions if table.applies_at_once and frame.kind is wire.Kind.PUSH else None
        for part in taken:
            if behind is None or copies is None or not copies.copies(frame.table):
                self._take(part, table, member=member)
            else:
                self._take_with(part, behind, copies, table, member=member)
        return True

    def _take_with(
        self, push: wire.Frame, behind: Behind, copies: SharedRegions, table: ShardTable, *, member: bool
    ) -> None:
        """A push of one partition, and what asks for the weights that it makes, if that has come.

        Between the two comes no other worker's push: it would change what was written for this one, and two
        connections would wait for each other at each partition, where now one is a partition ahead.
        """
        pull = behind.asking(push)
        if pull is None:
            self._take(push, table, member=member)
            return
        with table.together(push.partition):
            with copies.asking(push.table, push.partition):
                self._take(push, table, member=member)
            self._take(pull, table, member=member)

    def _take(self, frame: wire.Frame, table: ShardTable, *, member: bool) -> None:
        self.received_bytes += frame.nbytes
        try:
            table.receive(frame, self._outlet, member=member)
        except PsError as error:  # of this partition, whatever else the frame lists
            self._refuse(frame, error)

    def _says_pulls(self, frame: wire.Frame) -> bool:
        return self.carrier == Carrier.UDS and frame.kind is wire.Kind.PUSH and bool(frame.flags & wire.PULLS)

    def _lend(self, table: ShardTable) -> None:
        """Sends weights by reference from now on: who pushes has read those of the version before."""
        if table.spec.number not in self._lent:
            self._lent.add(table.spec.number)
            halves_of(table)

    def _share(self, frame: wire.Frame, table: ShardTable) -> bool:
        if self._regions is None:
            raise FrameRefused("this connection shares no memory: its HELLO did not say so")
        if len(frame.descriptors) < frame.version:  # the system had no place for them
            logger.error(
                "job %s worker %d: descriptors of its shared memory were lost, so its payloads travel: "
                "is the limit of descriptors reached?",
                self._job,
                self._worker,
            )
            self._outlet.send(Message(wire.Frame(kind=wire.Kind.SHARE, table=frame.table)))
            return False
        self._regions.receive(frame, table)
        return True

    def _refuse(self, frame: wire.Frame, error: PsError) -> None:
        self._shard.count_refused()
        # Its worker has left or was refused meanwhile: the coordinator has logged it, no trouble here.
        gone = not self.authenticated and isinstance(error, (JobUnknown, Evicted))
        self._shard.complaints.say(
            logging.DEBUG if gone else logging.WARNING,
            self._peer,
            "%s frame refused: %s",
            frame.kind.name,
            error,
        )
        refusal = wire.Frame(
            kind=wire.Kind.REFUSE,
            table=frame.table,
            partition=frame.partition,
            step=frame.step,
            worker=frame.worker,
            meta=refused_to_proto(error).SerializeToString(),
        )
        self._outlet.send(Message(refusal))


def _parts(frame: wire.Frame) -> Iterable[wire.Frame]:
    """The frame, or where it asks for many partitions at once, frames that ask for a few each.

    At a cut all answers come at one time: it stays one frame, and is acknowledged once.
    """
    if frame.kind is not wire.Kind.PULL or frame.flags & wire.CUT:
        return (frame,)
    try:
        wanted = meta.read_listed(frame)
    except FrameMalformed:
        return (frame,)  # which is refused
    starts = range(0, len(wanted), PULLED_TOGETHER)
    return (meta.part(frame, wanted[start : start + PULLED_TOGETHER]) for start in starts)
