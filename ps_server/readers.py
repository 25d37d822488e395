"""Readers of a job: those who take consistent cuts of its tables and are no members of it.

A reader has a stream to the coordinator as long as it is there, and connections to the shards under a number
that no worker has. One cut of a job at a time: hold on all shards, arm on all shards, end: see
`ps_server.cut`. Whatever happens, an end follows within `CUT_LIMIT_S`. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from weakref import WeakKeyDictionary

import grpc.aio

from ps_server.cut import clocks_of_cut
from ps_server.gate import gate_of
from ps_server.log import logger
from ps_server.member import JobState
from ps_server.orders import Shards
from ps_server.room import Room
from ps_server.state_store import StateStore
from ps_wire import consistency
from ps_wire.errors import ConfigurationRefused, FrameMalformed, JobUnknown, PsError
from ps_wire.frame import FIRST_READER, check_protocol
from ps_wire.messages import refused_to_proto, table_to_proto
from ps_wire.v1 import coordinator_pb2 as pb

MAX_READERS = 256
JOIN_LIMIT_S = 10.0
CUT_LIMIT_S = 10.0
LIVE_LIMIT_S = 10.0  # for a worker's next step
STATE_CHUNK_BYTES = 1 << 20


class Readers:
    """See the module's docstring."""

    def __init__(self, shards: Shards, rooms: Mapping[str, Room], states: StateStore) -> None:
        self._shards = shards
        self._rooms = rooms
        self._states = states
        self._numbers = itertools.count(FIRST_READER)
        self._present = 0
        self._cuts: WeakKeyDictionary[Room, asyncio.Lock] = WeakKeyDictionary()
        self._live: dict[str, asyncio.Future[int]] = {}

    async def serve(self, messages: AsyncIterator[pb.ReadRequest]) -> AsyncIterator[pb.ReadReply]:
        """A reader's stream, to its end; an error ends it with `refused`."""
        if self._present >= MAX_READERS:
            error = ConfigurationRefused(f"this service has {MAX_READERS} readers already")
            yield pb.ReadReply(refused=refused_to_proto(error))
            return
        self._present += 1
        inbox: asyncio.Queue[pb.ReadRequest | None] = asyncio.Queue()
        reading = asyncio.create_task(_read(messages, inbox))
        try:
            async for reply in self._serve(inbox):
                yield reply
        except PsError as error:
            logger.warning("reader refused: %s", error)
            yield pb.ReadReply(refused=refused_to_proto(error))
        finally:
            self._present -= 1
            reading.cancel()

    async def _serve(self, inbox: asyncio.Queue[pb.ReadRequest | None]) -> AsyncIterator[pb.ReadReply]:
        first = await _next(inbox, JOIN_LIMIT_S)
        if first is None or first.WhichOneof("kind") != "join":
            raise FrameMalformed("a reader's stream starts with a join")
        check_protocol(first.join.protocol)
        self._shards.check_ready()
        job = self._room(first.join.job).job
        reader = next(self._numbers)
        await self._shards.order(
            pb.Order(admit=pb.AdmitMember(job=job.spec, worker=reader, incarnation=1, reader=True))
        )
        logger.info(
            "job %s: reader %d (host %s, pid %d) joins",
            job.name,
            reader - FIRST_READER,
            first.join.host[:255],
            first.join.pid,
        )
        try:
            yield pb.ReadReply(joined=pb.Joined(worker=reader, incarnation=1))
            while (message := await _next(inbox, None)) is not None:
                async for reply in self._answer(message, job.name, reader, inbox):
                    yield reply
        finally:
            remove = pb.RemoveMember(job=job.name, worker=reader, incarnation=1)
            with suppress(PsError):  # the job is gone, or a shard is: so is its reader
                await self._shards.order(pb.Order(remove=remove))

    async def _answer(
        self, message: pb.ReadRequest, job: str, reader: int, inbox: asyncio.Queue[pb.ReadRequest | None]
    ) -> AsyncIterator[pb.ReadReply]:
        match message.WhichOneof("kind"):
            case "table":
                table = self._shards.own.table(job, message.table)
                if not table.started:
                    raise JobUnknown(f"table {message.table} of job {job} has not started: read it later")
                yield pb.ReadReply(table=table_to_proto(table.spec))
            case "cut":
                cut = pb.Cut(job=job, table=message.cut.table, reader=reader, number=message.cut.number)
                async for reply in self._cut(cut, inbox):
                    yield reply
            case "state":
                async for state in self._state(job, message.state):
                    yield pb.ReadReply(state=state)
            case "done":  # of a cut that was given up meanwhile
                pass
            case kind:
                raise FrameMalformed(f"a reader's stream does not take {kind!r} here")

    async def _cut(
        self, cut: pb.Cut, inbox: asyncio.Queue[pb.ReadRequest | None]
    ) -> AsyncIterator[pb.ReadReply]:
        """One cut, from its hold to its end; the reader says `done` in between."""
        room = self._room(cut.job)
        gate = gate_of(consistency.parse(room.job.consistency))
        async with self._cuts.setdefault(room, asyncio.Lock()):
            try:
                held = await self._shards.order(pb.Order(hold_cut=cut))
                cut.clocks.update(clocks_of_cut(gate.aggregates, held))
                await self._shards.order(pb.Order(arm_cut=cut))
                yield pb.ReadReply(cut=cut)
                message = await _next(inbox, CUT_LIMIT_S)
                done = message is not None and message.done == cut.number
            finally:
                with suppress(PsError):  # a shard that does not hear of it gives up by itself
                    await self._shards.order(pb.Order(end_cut=cut))
        if not done:
            yield pb.ReadReply(aborted=pb.CutAborted(number=cut.number))

    # -- what lies outside tables ----------------------------------------------------------------------

    def uploaded(self, job: str, step: int) -> None:
        """A worker has put the state that was asked for; it is that of this step."""
        asked = self._live.pop(job, None)
        if asked is not None and not asked.done():
            asked.set_result(step)

    async def _state(self, job: str, table: int) -> AsyncIterator[pb.OutsideState]:
        """The final one; while the job runs, a worker's at its next step; else that of the start."""
        step, whole = 0, True
        try:
            blob = self._states.get(job, "final")
        except JobUnknown:
            taken = await self._ask_live(job)
            whole, step = taken is not None, taken or 0
            blob = self._states.get(job, "live" if whole else f"start/{table}")
        for start in range(0, max(len(blob), 1), STATE_CHUNK_BYTES):
            data = blob[start : start + STATE_CHUNK_BYTES]
            last = start + STATE_CHUNK_BYTES >= len(blob)
            yield pb.OutsideState(data=data, last=last, step=step, whole=whole)

    async def _ask_live(self, name: str) -> int | None:
        """Asks the lowest live worker; the step of what it has put, None if it takes no step in time."""
        room = self._room(name)
        here = room.job.roster.here()
        if room.job.state is not JobState.RUNNING or not here:
            return None
        asked = self._live.get(name)
        if asked is None:
            asked = self._live[name] = asyncio.get_running_loop().create_future()
            lowest = min(here, key=lambda member: member.worker)
            queue = room.queues.get((lowest.worker, lowest.incarnation))
            if queue is not None:
                queue.put_nowait(pb.MemberReply(upload_live=pb.UploadLive()))
        try:
            async with asyncio.timeout(LIVE_LIMIT_S):
                return await asyncio.shield(asked)
        except TimeoutError:
            if self._live.get(name) is asked:
                del self._live[name]
            return None

    def _room(self, name: str) -> Room:
        room = self._rooms.get(name)
        if room is None:
            raise JobUnknown(f"no job {name[:64]!r} here: a reader comes after the workers", job=name[:64])
        return room


async def _read(messages: AsyncIterator[pb.ReadRequest], inbox: asyncio.Queue[pb.ReadRequest | None]) -> None:
    try:
        async for message in messages:
            inbox.put_nowait(message)
    except grpc.aio.AioRpcError as error:
        logger.debug("a reader's stream broke: %s", error)
    finally:
        inbox.put_nowait(None)


async def _next(inbox: asyncio.Queue[pb.ReadRequest | None], limit_s: float | None) -> pb.ReadRequest | None:
    """The next message; None at the end of the stream, and from then on, or after `limit_s`."""
    try:
        async with asyncio.timeout(limit_s):
            message = await inbox.get()
    except TimeoutError:
        return None
    if message is None:
        inbox.put_nowait(None)
    return message
