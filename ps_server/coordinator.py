"""The coordinator's gRPC service: streams of members and of following shards, state, status.

Thin: what a message means is decided in `membership`, carried out in `room`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc.aio

from ps_server import gatekeeper
from ps_server import member as members
from ps_server.log import logger
from ps_server.membership import Job
from ps_server.orders import Shards, norm_from_proto
from ps_server.readers import Readers
from ps_server.room import Room
from ps_server.state_store import StateStore
from ps_wire import consistency, nonfinite
from ps_wire.address import check_job_name
from ps_wire.errors import (
    FrameMalformed,
    JobFull,
    JobUnknown,
    MemoryLimitExceeded,
    PsError,
    ServerNotReady,
    TokenRefused,
    UsageError,
)
from ps_wire.frame import check_protocol
from ps_wire.messages import refused_to_proto, table_from_proto
from ps_wire.status import code_of, metadata_of
from ps_wire.text import one_line
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import coordinator_pb2_grpc as rpc
from ps_wire.v1 import spec_pb2

MAX_JOBS = 1024
MAX_WORKERS = 65_536
MAX_METRICS = 64
STATE_CHUNK_BYTES = 1 << 20
JOIN_LIMIT_S = 10.0
MAX_HOST = 255  # characters


class Coordinator(rpc.CoordinatorServicer):
    """See the module's docstring. Everything happens on the event loop."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._rooms: dict[str, Room] = {}
        self._states = StateStore()
        self._readers = Readers(shards, self._rooms, self._states)
        shards.on_lost_state = self._lost_state

    def stop(self) -> None:
        """Tells all members that the server stops, and ends the streams of followers."""
        error = ServerNotReady("the coordinator is stopping; start the servers again and then the workers")
        for room in self._rooms.values():
            room.do(room.job.tell_all(error))
        self._shards.close()

    # -- members ---------------------------------------------------------------------------------------

    async def Member(
        self, request_iterator: AsyncIterator[pb.MemberRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.MemberReply]:
        """A worker's stream: the first message joins; an error ends it with `refused`."""
        try:
            room, member, queue = await self._join(request_iterator)
        except PsError as error:
            logger.log(logging.DEBUG if error.retryable else logging.WARNING, "join refused: %s", error)
            yield pb.MemberReply(refused=refused_to_proto(error))
            return
        reading = asyncio.create_task(self._read(request_iterator, room, member, queue))
        try:
            while True:
                reply = await queue.get()
                yield reply
                if reply.WhichOneof("kind") in ("left", "refused"):
                    break
            # The worker closes first, so that its last message is not cut off by ours.
            await asyncio.wait([reading], timeout=JOIN_LIMIT_S)
        finally:
            reading.cancel()
            self._gone(room, member)
            room.close(member)

    async def _join(
        self, messages: AsyncIterator[pb.MemberRequest]
    ) -> tuple[Room, members.Member, asyncio.Queue[pb.MemberReply]]:
        try:
            async with asyncio.timeout(JOIN_LIMIT_S):
                first = await anext(aiter(messages))
        except (TimeoutError, StopAsyncIteration):
            raise FrameMalformed("a member's stream starts with a join") from None
        if first.WhichOneof("kind") != "join":
            raise FrameMalformed("a member's stream starts with a join")
        join = first.join
        check_protocol(join.protocol)
        self._shards.check_ready()
        model = str(consistency.parse(join.job.consistency))
        if not 1 <= join.job.num_workers <= MAX_WORKERS:
            raise UsageError(f"--num-workers must be in 1..{MAX_WORKERS}, got {join.job.num_workers}")
        choice = nonfinite.parse(join.job.nonfinite or "error")
        gatekeeper.check_job(join.job.name)
        room = self._room(check_job_name(join.job.name), model, join.job.num_workers, choice)
        member, actions = room.job.join(
            spec_pb2.Job(consistency=model, num_workers=join.job.num_workers, nonfinite=choice),
            worker=join.worker if join.HasField("worker") else None,
            host=one_line(join.host, MAX_HOST),
            pid=join.pid,
        )
        logger.info("job %s: %s joins", room.job.name, member.holder)
        return room, member, room.admit(member, actions)

    def _room(self, name: str, model: str, num_workers: int, choice: str) -> Room:
        job = Job(name, model, num_workers, choice)
        room = self._rooms.get(name)
        if room is None:
            if len(self._rooms) >= MAX_JOBS:
                raise JobFull(f"this service has {MAX_JOBS} jobs already")
            room = self._rooms[name] = Room(job, self._shards, self._forget)
        elif room.job.forgotten:
            if not room.idle:  # the shards still carry out what ends the job that had this name
                raise ServerNotReady(f"job {name} is being cleared away")
            room.job = job
        return room

    async def _read(
        self,
        messages: AsyncIterator[pb.MemberRequest],
        room: Room,
        member: members.Member,
        queue: asyncio.Queue[pb.MemberReply],
    ) -> None:
        try:
            async for message in messages:
                self._take(message, room, member, queue)
        except PsError as error:
            logger.warning("job %s worker %d refused: %s", room.job.name, member.worker, error)
            queue.put_nowait(pb.MemberReply(refused=refused_to_proto(error)))
        except grpc.aio.AioRpcError as error:
            logger.debug("job %s worker %d: stream broke: %s", room.job.name, member.worker, error)
        self._gone(room, member)

    def _take(
        self,
        message: pb.MemberRequest,
        room: Room,
        member: members.Member,
        queue: asyncio.Queue[pb.MemberReply],
    ) -> None:
        job = room.job
        match message.WhichOneof("kind"):
            case "heartbeat":
                room.heard(member, _bounded(message.heartbeat.progress))
                beat = pb.HeartbeatReply(number=message.heartbeat.number)
                queue.put_nowait(pb.MemberReply(heartbeat=beat))
            case "make_table":
                room.do(job.make_table(member, table_from_proto(message.make_table.table)))
            case "uploaded" if message.uploaded.final:
                room.do(job.uploaded_final(member))
            case "uploaded" if message.uploaded.live:
                self._readers.uploaded(job.name, member, message.uploaded.step)
            case "uploaded":
                room.do(job.uploaded(member, message.uploaded.table))
            case "finish":
                room.heard(member, _bounded(message.finish.progress))
                room.do(job.finish(member))
                self._readers.gone(job.name, member)
            case "leave":
                room.heard(member, _bounded(message.leave.progress))
                reason = one_line(message.leave.reason, 500)
                logger.info("job %s: %s leaves: %s", job.name, member.holder, reason or "done")
                room.do(job.leave(member, reason))
                self._readers.gone(job.name, member)
            case kind:
                raise FrameMalformed(f"a member's stream does not take {kind!r} here")

    def _gone(self, room: Room, member: members.Member) -> None:
        if room.job.roster.members.get(member.worker) is member and member.present:
            room.do(room.job.lost(member))
        self._readers.gone(room.job.name, member)

    def _forget(self, room: Room) -> None:
        if self._rooms.get(room.job.name) is room:
            del self._rooms[room.job.name]
            self._states.drop(room.job.name)

    async def _lost_state(self, shard: int) -> None:
        """A shard came back without its state: every job had a slice of its weights there."""
        for room in list(self._rooms.values()):
            error = JobUnknown(
                f"shard {shard} was started again without its state: its part of job {room.job.name} is lost",
                shard=shard,
            )
            room.do([*room.job.tell_all(error), *room.job.drop()])

    async def Read(
        self, request_iterator: AsyncIterator[pb.ReadRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ReadReply]:
        """A reader's stream."""
        async with aclosing(self._readers.serve(request_iterator)) as replies:
            async for reply in replies:
                yield reply

    # -- shards ----------------------------------------------------------------------------------------

    async def Follow(
        self, request_iterator: AsyncIterator[pb.FollowRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.Order]:
        """A shard above 0 registers, then carries orders out."""
        try:
            gatekeeper.check_service("be a shard")
            async with asyncio.timeout(JOIN_LIMIT_S):
                first = await anext(aiter(request_iterator))
        except (TokenRefused, TimeoutError, StopAsyncIteration) as error:
            silent = FrameMalformed("a shard's stream starts with register")
            refused = error if isinstance(error, TokenRefused) else silent
            await context.abort(code_of(refused), refused.message, metadata_of(refused))
        register = first.register
        outbox = await self._shards.register(register)
        await context.send_initial_metadata(())  # tells the shard that it is registered
        reading = asyncio.create_task(self._read_follower(request_iterator, register.shard, outbox))
        try:
            while (order := await outbox.get()) is not None:
                yield order
        finally:
            reading.cancel()
            self._shards.unregister(register.shard, outbox)

    async def _read_follower(
        self,
        messages: AsyncIterator[pb.FollowRequest],
        shard: int,
        outbox: asyncio.Queue[pb.Order | None],
    ) -> None:
        try:
            async for message in messages:
                if message.WhichOneof("kind") == "norm":
                    self._shards.reported(shard, norm_from_proto(message.norm))
                else:
                    self._shards.answered(shard, message.done)
        except grpc.aio.AioRpcError as error:
            logger.debug("shard %d: stream broke: %s", shard, error)
        outbox.put_nowait(None)

    # -- state -----------------------------------------------------------------------------------------

    async def PutState(
        self, request_iterator: AsyncIterator[pb.StateChunk], context: grpc.aio.ServicerContext
    ) -> pb.PutStateReply:
        """A member puts state, in chunks; kept once it is whole."""
        key: pb.StateKey | None = None
        blob = bytearray()
        room_bytes = 0
        async for chunk in request_iterator:
            if key is None:
                key = chunk.key
                self._check_member(key)
                room_bytes = self._states.room(key.job, key.name[:64])
            if len(blob) + len(chunk.data) > room_bytes:
                raise MemoryLimitExceeded(
                    f"state {key.name[:64]!r} of job {key.job} is over {room_bytes} bytes"
                )
            blob += chunk.data
        if key is None:
            raise FrameMalformed("a state without chunks")
        self._states.put(key.job, key.name[:64], bytes(blob))
        return pb.PutStateReply()

    async def GetState(
        self, request: pb.GetStateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.StateChunk]:
        """A member gets state, in chunks; with `at_least` it waits for it, as long as its call may take."""
        key = request.key
        self._check_member(key)
        while request.HasField("at_least") and not self._states.reached(key.job, key.name, request.at_least):
            await self._states.change(key.job)
            self._check_member(key)
        blob = self._states.get(key.job, key.name)
        for start in range(0, max(len(blob), 1), STATE_CHUNK_BYTES):
            yield pb.StateChunk(data=blob[start : start + STATE_CHUNK_BYTES])

    def _check_member(self, key: pb.StateKey) -> None:
        gatekeeper.check_job(key.job)
        room = self._rooms.get(key.job)
        if room is None:
            raise JobUnknown(f"no job {key.job[:64]!r} here")
        room.job.roster.member(key.worker, key.incarnation)

    # -- status ----------------------------------------------------------------------------------------

    async def Status(self, request: pb.StatusRequest, context: grpc.aio.ServicerContext) -> pb.StatusReply:
        """All jobs with their workers."""
        return pb.StatusReply(
            num_shards=self._shards.num_shards,
            shards=self._shards.addresses,
            jobs=[self._job_status(room) for name, room in self._rooms.items() if gatekeeper.sees(name)],
        )

    @staticmethod
    def _job_status(room: Room) -> pb.JobStatus:
        now_s = time.monotonic()
        job = room.job
        running = job.state is members.JobState.RUNNING
        return pb.JobStatus(
            job=job.spec,
            state=job.state.value,
            num_tables=job.num_tables,
            workers=[
                pb.WorkerStatus(
                    worker=member.worker,
                    incarnation=member.incarnation,
                    host=member.host,
                    pid=member.pid,
                    state="running" if running and member.trains else member.state.value,
                    progress=room.progress.get(member.worker, pb.Progress()),
                    heartbeat_age_s=now_s - room.heard_s.get(member.worker, now_s),
                )
                for _, member in sorted(job.roster.members.items())
            ],
        )


def _bounded(progress: pb.Progress) -> pb.Progress:
    """A worker's progress with at most `MAX_METRICS` metrics that have short, printable names."""
    for name in [name for name in progress.metrics if len(name) > 64 or not name.isprintable()]:
        del progress.metrics[name]
    for name in sorted(progress.metrics)[MAX_METRICS:]:
        del progress.metrics[name]
    return progress
