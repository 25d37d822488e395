"""The coordinator's gRPC service: streams of members and of following shards.

Thin: what a message means is decided in `membership`, carried out in `room`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

import grpc.aio
import torch

from ps_server import coordinator_state, gatekeeper
from ps_server.choices import attendance_from_proto
from ps_server.coordinator_calls import CoordinatorCalls
from ps_server.decisions import norm_from_proto
from ps_server.events import Event
from ps_server.generations import Generations
from ps_server.log import logger
from ps_server.member_streams import MemberStreams
from ps_server.membership import Job
from ps_server.orders import Shards
from ps_server.readers import Readers
from ps_server.recovery import Recovery
from ps_server.room import Room
from ps_server.saved_job import Snapshots
from ps_server.snapshot_policy import NO_SNAPSHOTS, SnapshotPolicy
from ps_server.state_store import StateStore
from ps_server.takings import Takings
from ps_wire.errors import (
    Fenced,
    FrameMalformed,
    JobFull,
    PsError,
    ServerNotReady,
    TokenRefused,
)
from ps_wire.snapshot_store import SnapshotStore
from ps_wire.status import code_of, metadata_of
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

MAX_JOBS = 1024
REGISTER_LIMIT_S = 10.0
DRAIN_LIMIT_S = 10.0  # for orders to be answered
LOOK_S = 1.0  # between two looks whether a newer coordinator was started


class Coordinator(CoordinatorCalls):
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
        self._recovery.on_back = self._takings.goes_back
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
        facts, tensors = coordinator_state.capture(self._rooms, self._states)
        return facts | {"shards": self._shards.capture()}, tensors

    def take_over(self, facts: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Goes on with what a predecessor has captured, before anybody comes."""
        coordinator_state.restore(facts, tensors, room_of=self._room, states=self._states)
        tables = [(room.job.spec, spec) for room in self._rooms.values() for spec in room.job.open_tables]
        self._shards.take_over(facts["shards"], tables)
        for room in self._rooms.values():
            room.events.say(Event.RESTORE, hand_off="yes")
        self._members.look()

    def halt(self) -> None:
        """Does nothing any more; says nothing to anybody."""
        if self._looking is not None:
            self._looking.cancel()
        self._recovery.stop()
        self._members.stop()
        self._takings.stop()
        for room in self._rooms.values():
            room.halt()
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
