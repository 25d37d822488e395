"""Jobs that a person drops: all are told, shards and coordinator forget the job, and its name begins anew.

Snapshots stay where they are, and are marked, so that no later job of the name goes on from them by itself.
What was begun is brought to its end, whoever asked for it has gone or not. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from ps_server.agreement.refusals import dropped
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.jobs.actions import named
from ps_server.coordinator.jobs.dropped import DroppedNames
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.readers import Readers
from ps_server.coordinator.recovery import Recovery
from ps_server.coordinator.snapshots.scheduler import SnapshotScheduler
from ps_server.coordinator.state_store import StateStore
from ps_server.log import logger
from ps_wire.errors import JobDropped, JobInUse, JobUnknown, PsError, ServerNotReady
from ps_wire.process import watched
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import coordinator_pb2 as pb

AGAIN_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A job that was dropped, for the person who asked.

    Attributes:
        state: that the job was in.
        workers: live ones that were told, for people.
        readers: that were told.
        tables: that it had.
        snapshots: that stay.
        where: they are.
    """

    state: str
    workers: tuple[str, ...]
    readers: int
    tables: int
    snapshots: int
    where: str


class Drops:
    """The drops of jobs that people ask for, one at a time for each job."""

    def __init__(
        self,
        fleet: Fleet,
        runners: dict[str, JobRunner],
        states: StateStore,
        names: DroppedNames,
        *,
        store: SnapshotStore | None,
        readers: Readers,
        recovery: Recovery,
        scheduler: SnapshotScheduler,
    ) -> None:
        """Takes what knows of jobs; `store`: where snapshots are, None where none are taken."""
        self._fleet = fleet
        self._runners = runners
        self._states = states
        self._store = store
        self._readers = readers
        self._recovery = recovery
        self._scheduler = scheduler
        self._under_way: dict[str, asyncio.Task[Dropped | PsError]] = {}
        self._names = names

    def check(self, job: str) -> None:
        """Raises ServerNotReady while the job is being dropped: who comes then is to begin the next one."""
        if job in self._under_way:
            raise ServerNotReady(f"job {job[:64]} is being dropped: come again")

    def over(self, job: str, incarnation: int) -> JobDropped | None:
        """Why an incarnation is in no job: its job was dropped; None: it was not, as far as is known."""
        return self._names.over(job, incarnation)

    async def settle(self) -> None:
        """Returns once none is under way."""
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()))

    async def drop(self, job: str, *, force: bool) -> Dropped:
        """Drops a job.

        Args:
            job: its name.
            force: also where it has live workers, who are told and end.

        Raises:
            JobUnknown: there is no such job.
            JobInUse: it has live workers; they are named.
            ServerNotReady: not all shards are there, or the job is going back to a snapshot: later.
            SnapshotFailed: its snapshots cannot be marked; nothing was dropped.
        """
        self.check(job)
        self._fleet.check_ready()
        asleep = self._recovery.sleeps(job)
        runner = self._runners.get(job)
        if runner is None and not asleep:
            raise JobUnknown(f"there is no job {job!r} to drop: ps-lab status lists them", job=job)
        live = runner.job.roster.heard() if runner is not None else []
        if live and not force:
            raise JobInUse(
                f"job {job} has live workers: {named([member.holder for member in live])}. Stop them, or "
                "drop it with --force, which ends them",
                job=job,
                workers=len(live),
            )
        task = asyncio.get_running_loop().create_task(self._end(job, runner))
        watched.outcome(f"dropping job {job}", task, log=logger)
        self._under_way[job] = task
        task.add_done_callback(lambda _: self._under_way.pop(job))
        outcome = await asyncio.shield(task)  # else it would end half-way when nobody waits any more
        if isinstance(outcome, PsError):
            raise outcome
        return outcome

    async def _end(self, job: str, runner: JobRunner | None) -> Dropped | PsError:
        await self._scheduler.bar(job)
        try:
            return await self._drop(job, runner)
        except PsError as error:
            self._fleet.own.complaints.say(logging.ERROR, f"job {job}", "cannot be dropped: %s", error)
            return error
        finally:
            self._scheduler.unbar(job)

    async def _drop(self, job: str, runner: JobRunner | None) -> Dropped:
        snapshots = await self._fleet.beside.run(job, self._mark, job)
        error = dropped(job)
        state, tables, workers = "asleep", 0, tuple[str, ...]()
        if runner is not None:
            await runner.freeze()  # the order that is under way comes to its end
            state, tables = runner.job.state.value, runner.job.num_tables
            workers = tuple(member.holder for member in runner.job.roster.heard())
            self._names.note(job, runner.job.roster.newest_incarnation)
            runner.do(runner.job.dismiss(error))
            self._runners.pop(job, None)  # one with nothing to keep may have gone by itself meanwhile
        self._recovery.dismiss(job)
        readers = self._readers.dismiss(job, error)
        await self._order(pb.Order(drop_job=pb.DropJob(job=job)))
        self._states.drop(job)
        self._scheduler.forget(job)
        if runner is not None:
            runner.wake()  # whoever waits in it sees that it is gone
        logger.warning(
            "job %s: dropped; it was %s, with %d tables, %d workers and %d readers",
            *(job, state, tables, len(workers), readers),
        )
        where = "" if self._store is None else self._store.where(job, "")
        return Dropped(
            state=state, workers=workers, readers=readers, tables=tables, snapshots=snapshots, where=where
        )

    def _mark(self, job: str) -> int:
        """Marks the job's snapshots; returns how many there are."""
        if self._store is None:
            return 0
        count = len(self._store.names(job))
        if count:
            self._store.drop(job)
        return count

    async def _order(self, order: pb.Order) -> None:
        """Until all shards have carried it out: what one keeps of it would be in the next job of the name."""
        left = True
        while left:
            try:
                await self._fleet.wait_complete(None)
                await self._fleet.order(order)
                left = False
            except ServerNotReady as error:
                logger.warning("%s; trying again", error)
                await asyncio.sleep(AGAIN_S)
