"""The coordinator's gRPC service: streams of members and of following shards, state, status.

Thin: what a message means is decided in `membership`, carried out in `room`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

import grpc.aio
import torch

from ps_server import coordinator_state, gatekeeper
from ps_server import member as members
from ps_server.choices import attendance_from_proto
from ps_server.dealt import Mark
from ps_server.decisions import norm_from_proto
from ps_server.generations import Generations
from ps_server.log import logger
from ps_server.member_streams import MemberStreams, worker_status
from ps_server.membership import Job
from ps_server.orders import Shards
from ps_server.readers import Readers
from ps_server.recovery import Recovery
from ps_server.room import Room
from ps_server.saved_job import Snapshots
from ps_server.shares import MAX_LOADERS, EpochUse
from ps_server.snapshot_policy import NO_SNAPSHOTS, SnapshotPolicy
from ps_server.state_store import StateStore
from ps_server.takings import Takings
from ps_wire.errors import (
    Fenced,
    FrameMalformed,
    JobFull,
    JobUnknown,
    MemoryLimitExceeded,
    PsError,
    ServerNotReady,
    TokenRefused,
    UsageError,
)
from ps_wire.snapshot_store import SnapshotStore
from ps_wire.status import code_of, metadata_of
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import coordinator_pb2_grpc as rpc
from ps_wire.v1 import spec_pb2

MAX_JOBS = 1024
MAX_EPOCHS_SHOWN = 4
REGISTER_LIMIT_S = 10.0
DRAIN_LIMIT_S = 10.0  # for orders to be answered
LOOK_S = 1.0  # between two looks whether a newer coordinator was started
STATE_CHUNK_BYTES = 1 << 20
MAX_COUNT = (1 << 64) - 1


class Coordinator(rpc.CoordinatorServicer):
    """See the module's docstring. Everything happens on the event loop."""

    def __init__(
        self,
        shards: Shards,
        snapshots: Snapshots | None = None,
        *,
        store: SnapshotStore | None = None,
        policy: SnapshotPolicy = NO_SNAPSHOTS,
        on_fenced: Callable[[Fenced], None] = lambda _: None,
    ) -> None:
        """Begins with no jobs.

        Args:
            shards: all of them.
            snapshots: which jobs go back to where servers lose state; None: they are lost.
            store: where snapshots are written; None: none are taken.
            policy: when they are taken.
            on_fenced: a newer coordinator was started: this one is to stop.
        """
        self._on_fenced = on_fenced
        self._looking: asyncio.Task[None] | None = None
        self._shards = shards
        self._rooms: dict[str, Room] = {}
        self._states = StateStore()
        self._readers = Readers(shards, self._rooms, self._states)
        self._takings = Takings(
            shards,
            self._rooms,
            self._states,
            store=store,
            policy=policy,
            lock_of=self._readers.lock_of,
        )
        self._members = MemberStreams(shards, self._rooms, self._readers, self._takings, self._room)
        self._recovery = Recovery(shards, self._rooms, self._states, self._room, snapshots)
        self._members.recovery = self._recovery
        self._recovery.on_restored = self._members.look
        shards.on_lost_state = self._recovery.lost

    def begin(self) -> None:
        """To be called once, on the event loop: jobs go on from their snapshots, and others are taken."""
        generations = self._shards.standings.generations
        if generations.lasting:
            self._looking = asyncio.get_running_loop().create_task(self._look(generations))
            self._recovery.begin()
        self._takings.begin()

    async def _look(self, generations: Generations) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await asyncio.to_thread(generations.check)
            except Fenced as error:
                self._on_fenced(error)
                return

    def stop(self) -> None:
        """Tells all members that the server stops, and ends the streams of followers."""
        error = ServerNotReady("the coordinator is stopping; start the servers again and then the workers")
        for room in self._rooms.values():
            room.do(room.job.tell_all(error))
        self.halt()

    async def drain(self) -> bool:
        """Before `capture`: members' streams end, and what is under way goes on to its end.

        Returns:
            Whether it did, in time: else there is nothing to hand off.
        """
        self._members.close()
        if not self._recovery.idle:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_LIMIT_S):
                for room in self._rooms.values():
                    await room.settle()
        return all(room.idle for room in self._rooms.values())

    def capture(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What a successor goes on with: see `coordinator_state`."""
        return coordinator_state.capture(self._rooms, self._states, self._shards.standings)

    def take_over(self, facts: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Goes on with what a predecessor has captured, before anybody comes."""
        coordinator_state.restore(
            facts, tensors, room_of=self._room, states=self._states, standings=self._shards.standings
        )
        self._members.look()

    def halt(self) -> None:
        """Does nothing any more; says nothing to anybody."""
        if self._looking is not None:
            self._looking.cancel()
        self._recovery.stop()
        self._members.stop()
        self._takings.stop()
        self._shards.close()

    # -- members ---------------------------------------------------------------------------------------

    async def Member(
        self, request_iterator: AsyncIterator[pb.MemberRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.MemberReply]:
        """A worker's stream."""
        async with aclosing(self._members.serve(request_iterator)) as replies:
            async for reply in replies:
                yield reply

    def _room(self, wanted: spec_pb2.Job) -> Room:
        name = wanted.name
        job = Job(name, wanted.consistency, wanted.num_workers, wanted.nonfinite, wanted.min_workers)
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

    def _forget(self, room: Room) -> None:
        if self._rooms.get(room.job.name) is room:
            del self._rooms[room.job.name]
            self._states.drop(room.job.name)

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
            async with asyncio.timeout(REGISTER_LIMIT_S):
                first = await anext(aiter(request_iterator))
        except (TokenRefused, TimeoutError, StopAsyncIteration) as error:
            silent = FrameMalformed("a shard's stream starts with register")
            refused = error if isinstance(error, TokenRefused) else silent
            await context.abort(code_of(refused), refused.message, metadata_of(refused))
        register = first.register
        try:
            outbox = self._shards.register(register)
        except PsError as error:
            if isinstance(error, Fenced) and error.facts.get("coordinator"):
                self._on_fenced(error)
            await context.abort(code_of(error), error.message, metadata_of(error))
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
                elif message.WhichOneof("kind") == "attendance":
                    self._shards.attended(shard, attendance_from_proto(message.attendance))
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
        if key.name == "live":
            async for chunk in self._live_state(key):
                yield chunk
            return
        while request.HasField("at_least") and not self._states.reached(key.job, key.name, request.at_least):
            await self._states.change(key.job)
            self._check_member(key)
        blob = self._states.get(key.job, key.name)
        for start in range(0, max(len(blob), 1), STATE_CHUNK_BYTES):
            yield pb.StateChunk(data=blob[start : start + STATE_CHUNK_BYTES])

    async def _live_state(self, key: pb.StateKey) -> AsyncIterator[pb.StateChunk]:
        room = self._rooms[key.job]
        joiner = room.job.roster.member(key.worker, key.incarnation)
        blob = await self._readers.live.for_joiner(room, joiner)
        for start in range(0, max(len(blob), 1), STATE_CHUNK_BYTES):
            yield pb.StateChunk(data=blob[start : start + STATE_CHUNK_BYTES])

    def _check_member(self, key: pb.StateKey) -> None:
        self._member(key.job, key.worker, key.incarnation)

    def _member(self, job: str, worker: int, incarnation: int) -> tuple[Room, members.Member]:
        gatekeeper.check_job(job)
        room = self._rooms.get(job)
        if room is None:
            raise JobUnknown(f"no job {job[:64]!r} here")
        known = room.job.roster.members.get(worker)
        if (
            known is not None
            and not known.reader
            and (
                incarnation < known.incarnation
                or (incarnation == known.incarnation and known.state is members.MemberState.LOST)
            )
        ):
            raise members.evicted(room.job.name, worker, incarnation)
        return room, room.job.roster.member(worker, incarnation)

    async def Share(self, request: pb.ShareRequest, context: grpc.aio.ServicerContext) -> pb.ShareReply:
        """What of an epoch of a loader a worker hands out next."""
        room, member = self._member(request.job, request.worker, request.incarnation)
        piece = room.job.shares.ask(
            _loader(request.loader),
            request.epoch,
            member.worker,
            member.incarnation,
            room.job.sharing(),
            begins=request.begins,
            first=request.first,
            samples=request.samples,
            mark=_mark(request.mark),
            rest=_mark(request.rest),
        )
        room.say_epochs()
        if piece is None:
            return pb.ShareReply()
        return pb.ShareReply(
            piece=pb.Piece(epoch=piece.epoch, place=piece.place, count=piece.count, first=piece.first)
        )

    async def Use(self, request: pb.UseRequest, context: grpc.aio.ServicerContext) -> pb.UseReply:
        """How far a worker has come in what it hands out."""
        room, member = self._member(request.job, request.worker, request.incarnation)
        loader = _loader(request.loader)
        room.job.shares.mark(loader, member.worker, member.incarnation, _mark(request.mark))
        return pb.UseReply()

    async def Snapshot(
        self, request: pb.SnapshotRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.SnapshotProgress]:
        """Takes a snapshot; the last word says where it is."""
        gatekeeper.check_job(request.job)
        async for progress in self._takings.take(request.job):
            yield progress

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
        clocks = {worker: progress.step for worker, progress in room.progress.items()}
        return pb.JobStatus(
            job=job.spec,
            state=job.state.value,
            num_tables=job.num_tables,
            epoch=job.epoch,
            events=room.events.counts,
            happened=room.events.last,
            epochs=[_epoch_use(use) for use in job.shares.uses(clocks, MAX_EPOCHS_SHOWN)],
            workers=[worker_status(room, member, now_s) for _, member in sorted(job.roster.members.items())],
        )


def _loader(number: int) -> int:
    if number >= MAX_LOADERS:
        raise UsageError(f"a worker has made over {MAX_LOADERS} loaders: make one, and iterate it again")
    return number


def _mark(mark: pb.Mark) -> Mark:
    return Mark(
        step=mark.step,
        batches=mark.batches,
        samples=mark.samples,
        pace_batches=mark.pace_batches,
        pace_samples=mark.pace_samples,
    )


def _epoch_use(use: EpochUse) -> pb.EpochUse:
    """Numbers that a worker has made up are cut to what the message holds."""
    return pb.EpochUse(
        loader=use.loader,
        epoch=use.epoch,
        samples=use.samples,
        used=min(use.used, MAX_COUNT),
        handed_on=min(use.handed_on, MAX_COUNT),
        over=use.over,
    )
