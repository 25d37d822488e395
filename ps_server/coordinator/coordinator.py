"""What shard 0 is beside a shard: the jobs with their rooms, and all that the coordinator does for them.

It begins, takes over, hands on and ends them; others reach it through `service`. What a message means is
decided in `membership`, carried out in `room`. It must not know gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from ps_server.agreement.refusals import too_many_jobs
from ps_server.coordinator import hand_off
from ps_server.coordinator.drops import Drops
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.fleet.generations import Generations
from ps_server.coordinator.jobs.job import Job
from ps_server.coordinator.jobs.runner import MAX_JOBS, JobRunner
from ps_server.coordinator.jobs.saved_job import Snapshots
from ps_server.coordinator.member_streams import MemberStreams
from ps_server.coordinator.readers import Readers
from ps_server.coordinator.recovery import Recovery
from ps_server.coordinator.service import CoordinatorService
from ps_server.coordinator.snapshots.policy import NO_SNAPSHOTS, SnapshotPolicy
from ps_server.coordinator.snapshots.scheduler import SnapshotScheduler
from ps_server.coordinator.state_store import StateStore
from ps_server.events import Event
from ps_server.log import logger
from ps_wire.errors import Fenced, ServerNotReady
from ps_wire.process import watched
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import spec_pb2

DRAIN_LIMIT_S = 10.0  # for orders to be answered
LOOK_S = 1.0  # between two looks whether a newer coordinator was started


class Coordinator:
    """See the module's docstring. Everything happens on the event loop.

    Attributes:
        service: for gRPC.
    """

    def __init__(
        self,
        shards: Fleet,
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
        self._rooms: dict[str, JobRunner] = {}
        self._states = StateStore()
        self._readers = Readers(shards, self._rooms, self._states)
        self._takings = SnapshotScheduler(
            shards,
            self._rooms,
            self._states,
            store=store,
            policy=policy,
            lock_of=self._readers.lock_of,
        )
        self._members = MemberStreams(shards, self._rooms, self._readers, self._takings, self._room)
        self._recovery = Recovery(shards, self._rooms, self._states, self._room, snapshots)
        self._recovery.takings = self._takings
        self._members.recovery = self._recovery
        self._readers.on_join = self._recovery.check
        self._recovery.on_restored = self._members.look
        shards.on_lost_state = self._recovery.lost
        self._drops = self._members.drops = Drops(
            shards,
            self._rooms,
            self._states,
            store=store,
            readers=self._readers,
            recovery=self._recovery,
            takings=self._takings,
        )
        self.service = CoordinatorService(
            shards,
            self._rooms,
            self._states,
            member_streams=self._members,
            readers=self._readers,
            recovery=self._recovery,
            takings=self._takings,
            drops=self._drops,
            on_fenced=on_fenced,
        )

    def begin(self) -> None:
        """To be called once, on the event loop: jobs go on from their snapshots, and others are taken."""
        generations = self._shards.standings.generations
        if generations.lasting:
            look = partial(self._look, generations)
            self._looking = watched.endless_task("looking for a newer coordinator", look, log=logger)
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
            except OSError as error:
                logger.error("cannot look whether another shard 0 was started: %s; trying on", error)

    def stop(self) -> None:
        """Ends the streams of members and followers: who trains looks for the coordinator after this one.

        A stream that stayed open would hold up the end of the server, and of workers that leave meanwhile:
        nobody carries out any more what they say.
        """
        self._members.close()
        self.halt()

    async def drain(self) -> bool:
        """Before `capture`: members' streams end, and what is under way goes on to its end.

        Returns:
            Whether it did, in time: else there is nothing to hand off.
        """
        self._members.close()
        self._members.entrances.settle()
        if not self._recovery.idle:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_LIMIT_S):
                await self._drops.settle()
                for room in list(self._rooms.values()):  # one that settles may be forgotten
                    await room.settle()
        idle = all(room.idle for room in self._rooms.values())
        if idle:
            await self._shards.drain()
        return idle

    def capture(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What a successor goes on with: see `coordinator_state`."""
        facts, tensors = hand_off.capture(self._rooms, self._states)
        return facts | {"shards": self._shards.capture()}, tensors

    def take_over(self, facts: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Goes on with what a predecessor has captured, before anybody comes."""
        hand_off.restore(facts, tensors, room_of=self._room, states=self._states)
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

    # -- jobs ------------------------------------------------------------------------------------------

    def _room(self, wanted: spec_pb2.Job) -> JobRunner:
        name = wanted.name
        job = Job(name, wanted.consistency, wanted.num_workers, wanted.nonfinite, wanted.min_workers)
        room = self._rooms.get(name)
        if room is None:
            if len(self._rooms) >= MAX_JOBS:
                raise too_many_jobs(MAX_JOBS)
            job.roster.floor = self._drops.last_incarnation(name)
            room = self._rooms[name] = JobRunner(job, self._shards, self._forget)
        elif room.job.forgotten:
            if not room.idle:  # the shards still carry out what ends the job that had this name
                raise ServerNotReady(f"job {name} is being cleared away")
            room.job = job
        return room

    def _forget(self, room: JobRunner) -> None:
        if self._rooms.get(room.job.name) is room:
            del self._rooms[room.job.name]
            self._states.drop(room.job.name)
