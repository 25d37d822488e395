"""The coordinator, which shard 0 is beside a shard: all jobs with their runners, and what is done for them.

It begins, takes over, hands on and ends them; others reach it through `service`. What a message means is
decided by a `Job`, carried out by its `JobRunner`. It must not know gRPC.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ps_server.coordinator.drops import Drops
from ps_server.coordinator.figures import JobFigures, figures_of
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.fleet.generations import Generations
from ps_server.coordinator.jobs.dropped import DroppedNames
from ps_server.coordinator.jobs.runners import JobRunners
from ps_server.coordinator.jobs.saved_job import Snapshots
from ps_server.coordinator.late_joins import LateJoins
from ps_server.coordinator.lease_watch import LeaseWatch
from ps_server.coordinator.live_extras import LiveExtras
from ps_server.coordinator.member_streams import MemberStreams
from ps_server.coordinator.readers import Readers
from ps_server.coordinator.recovery import Recovery
from ps_server.coordinator.service import CoordinatorService
from ps_server.coordinator.snapshots.policy import NO_SNAPSHOTS, SnapshotPolicy
from ps_server.coordinator.snapshots.scheduler import SnapshotScheduler
from ps_server.coordinator.state_store import StateStore
from ps_server.events import Event
from ps_server.log import logger
from ps_wire.errors import Fenced
from ps_wire.process import watched
from ps_wire.snapshot.store import SnapshotStore

DRAIN_LIMIT_S = 10.0  # for orders to be answered
LOOK_S = 1.0  # between two looks whether a newer coordinator was started


class Coordinator:
    """The coordinator of all jobs: it makes its parts, and hands them on.

    Everything happens on the event loop.

    Attributes:
        service: for gRPC.
        runners: of all jobs, by name.
    """

    def __init__(
        self,
        fleet: Fleet,
        snapshots: Snapshots | None = None,
        *,
        store: SnapshotStore | None = None,
        policy: SnapshotPolicy = NO_SNAPSHOTS,
        on_fenced: Callable[[Fenced], None] = lambda _: None,
    ) -> None:
        """Begins with no jobs.

        Args:
            fleet: all of them.
            snapshots: which jobs go back to where servers lose state; None: they are lost.
            store: where snapshots are written; None: none are taken.
            policy: when they are taken.
            on_fenced: a newer coordinator was started: this one is to stop.
        """
        self._on_fenced = on_fenced
        self._looking: asyncio.Task[None] | None = None
        self._fleet = fleet
        self._states = states = StateStore()
        self._dropped = DroppedNames()
        self._runners = JobRunners(fleet, states, self._dropped)
        self.runners = runners = self._runners.by_name
        live, self._late_joins = LiveExtras(states), LateJoins()
        self._scheduler = SnapshotScheduler(fleet, runners, states, store=store, policy=policy)
        self._leases = LeaseWatch(runners, [live, self._scheduler])
        self._recovery = Recovery(
            fleet,
            runners,
            states,
            self._runners.of,
            snapshots,
            scheduler=self._scheduler,
            on_restored=self._leases.look,
        )
        readers = Readers(fleet, runners, live, on_join=self._recovery.check)
        self._drops = Drops(
            fleet,
            runners,
            states,
            self._dropped,
            store=store,
            readers=readers,
            recovery=self._recovery,
            scheduler=self._scheduler,
        )
        self._members = MemberStreams(
            fleet,
            runners,
            self._runners.of,
            live=live,
            late_joins=self._late_joins,
            scheduler=self._scheduler,
            leases=self._leases,
            recovery=self._recovery,
            drops=self._drops,
        )
        self.service = CoordinatorService(
            fleet,
            runners,
            states,
            live=live,
            member_streams=self._members,
            readers=readers,
            recovery=self._recovery,
            scheduler=self._scheduler,
            drops=self._drops,
            on_fenced=on_fenced,
        )

    def figures(self, *, most_jobs: int, most_members: int) -> tuple[JobFigures, ...]:
        """Jobs as they are now, those first that have members, then by name; each with its first members.

        To be called on the event loop.
        """
        now_s = time.monotonic()
        names = sorted(self.runners, key=lambda name: (not self.runners[name].job.roster.present(), name))
        return tuple(
            figures_of(
                self.runners[name],
                self._scheduler.figures(name),
                now_s=now_s,
                most_members=most_members,
            )
            for name in names[:most_jobs]
        )

    def begin(self) -> None:
        """To be called once, on the event loop: jobs go on from their snapshots, and others are taken."""
        generations = self._fleet.registry.generations
        if generations.lasting:
            look = partial(self._look, generations)
            self._looking = watched.endless_task("looking for a newer coordinator", look, log=logger)
            self._recovery.begin()
        self._scheduler.begin()

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
        """Before `dump`: members' streams end, and what is under way goes on to its end.

        Returns:
            Whether it did, in time: else there is nothing to hand off.
        """
        self._members.close()
        self._fleet.keep_places()
        self._recovery.close()
        self._late_joins.settle()
        if not self._recovery.idle:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_LIMIT_S):
                await self._drops.settle()
                for runner in list(self.runners.values()):  # one that settles may be forgotten
                    await runner.settle()
        idle = all(runner.idle for runner in self.runners.values())
        if idle:
            await self._fleet.drain()
        return idle

    def dump(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The state that a successor goes on with, once this one is drained: for JSON, and bytes by name."""
        facts = {
            "rooms": self._runners.dump(),
            "shards": self._fleet.dump(),
            "dropped": self._dropped.dump(),
        }
        return facts, self._states.dump()

    def load(self, facts: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        """Goes on with what a predecessor has dumped, before anybody comes."""
        self._dropped.load(facts.get("dropped", ()))  # a release before has none
        self._states.load(blobs)
        self._runners.load(facts["rooms"])
        tables = [
            (runner.job.spec, spec) for runner in self.runners.values() for spec in runner.job.open_tables
        ]
        self._fleet.load(facts["shards"], tables)
        for runner in self.runners.values():
            runner.events.say(Event.RESTORE, hand_off="yes")
        self._leases.look()

    def halt(self) -> None:
        """Does nothing any more; says nothing to anybody."""
        if self._looking is not None:
            self._looking.cancel()
        self._recovery.stop()
        self._late_joins.stop()
        self._leases.stop()
        self._scheduler.stop()
        for runner in self.runners.values():
            runner.halt()
        self._fleet.close()
