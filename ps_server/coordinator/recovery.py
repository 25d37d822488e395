"""Recovery of jobs when servers come back without what they held: on the coordinator.

A shard that comes back empty, or a coordinator that does, takes all shards back to the last snapshot of each
job, together: one that goes on with newer state beside one with older would be torn. A job without a snapshot
is lost, and its members are told so.

A coordinator that was started again leaves jobs that have snapshots asleep, ended ones too, until somebody
comes to one. While a job goes back nobody joins it, and no order goes out but for that. Jobs go back beside
each other, some at a time.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ps_server.agreement.refusals import too_many_jobs
from ps_server.coordinator.allowance import Allowance
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.jobs.job import check_job
from ps_server.coordinator.jobs.runner import MAX_JOBS, JobRunner
from ps_server.coordinator.jobs.saved_job import SavedJob, Snapshots
from ps_server.coordinator.snapshots.scheduler import SnapshotScheduler
from ps_server.coordinator.state_store import StateStore
from ps_server.log import logger
from ps_wire.errors import (
    ConfigurationRefused,
    JobMismatch,
    JobUnknown,
    MemoryLimitExceeded,
    PsError,
    RestoredTooOften,
    ServerNotReady,
    SnapshotFailed,
    SnapshotMismatch,
    SnapshotMissing,
    SnapshotUnusable,
)
from ps_wire.frames.frame import MAX_GENERATION
from ps_wire.frames.messages import table_to_proto
from ps_wire.process import watched
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

AGAIN_S = 0.2
LIST_AGAIN_S = 2.0
AT_ONCE = 8  # jobs whose parts shards read: fewer than do orders side by side (`lanes`), so others train on
TRIES = 16  # snapshots of a job, the newest first; together they cost a generation
RESTORES, RESTORES_WITHIN_S = 4, 600.0  # that people may ask for, of one job
REFUSED_S = 10.0  # who comes to a job that could not go back hears why, for so long; then it is tried again


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a job could not go back, and until when that is not tried again.

    Attributes:
        error: for who comes to the job.
        until_s: of the monotonic clock.
    """

    error: PsError
    until_s: float


class Recovery:
    """The recovery of jobs: each goes back to a snapshot, or ends with an error that says why."""

    def __init__(
        self,
        fleet: Fleet,
        runners: dict[str, JobRunner],
        states: StateStore,
        runner_of: Callable[[spec_pb2.Job], JobRunner],
        snapshots: Snapshots | None = None,
        *,
        scheduler: SnapshotScheduler,
        on_restored: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing goes back yet.

        Args:
            fleet: all of them.
            runners: of all jobs.
            states: what workers keep outside tables.
            runner_of: makes a runner of a job.
            snapshots: which jobs have some; None: nothing is durable.
            scheduler: of what a job is that is about to go back it takes no snapshot.
            on_restored: hears that a job has gone back: there are leases to look at.
            clock: seconds of a monotonic clock.
        """
        self._clock = clock
        self._restores = Allowance(RESTORES, RESTORES_WITHIN_S)
        self._fleet = fleet
        self._runners = runners
        self._states = states
        self._runner_of = runner_of
        self._snapshots = snapshots
        self._on_restored = on_restored
        self._scheduler = scheduler
        self._went_to: dict[str, str] = {}  # job -> snapshot
        self._refused: dict[str, _Refusal] = {}  # jobs whose snapshot cannot be used here; nobody knows them
        self._lost: set[int] = set()
        self._pending: set[str] = set()  # jobs that are to go back, some of them once more
        self._going: dict[str, asyncio.Task[None]] = {}  # jobs that go back now
        self._asleep: set[str] = set()  # jobs with snapshots that nobody has come to
        self._listed = True  # that they are known
        self._listing: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(AT_ONCE)
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether no job goes back, or is about to; jobs to sleep on may still be looked for."""
        return not self._going

    @property
    def absent(self) -> dict[str, str]:
        """Jobs that have snapshots and are not held by the servers yet: name -> what becomes of it."""
        asleep = self._asleep | self._refused.keys()
        states = dict.fromkeys(asleep, "asleep") | dict.fromkeys(self._going, "going back")
        return {name: states[name] for name in sorted(states.keys() - self._runners.keys())}

    def check(self, job: str) -> None:
        """Refuses who comes to a job that goes back to its snapshot; one that sleeps is woken.

        Raises:
            ServerNotReady: come again; perhaps to the coordinator after this one, which stops.
            JobFull: there are too many jobs for another one.
            MemoryLimitExceeded: its snapshot did not fit into the servers; it is tried again for who comes
                `REFUSED_S` later.
            SnapshotUnusable: its snapshots are of another number of servers, and parts of them are not here;
                the same.
        """
        if (refused := self._refused.get(job)) is not None:
            if self._clock() < refused.until_s:
                raise refused.error
            del self._refused[job]
            self._asleep.add(job)
        if job in self._asleep:
            if len(self._runners) >= MAX_JOBS:
                raise too_many_jobs(MAX_JOBS)
            self._start(job)
            self._asleep.discard(job)
        if not self._listed or job in self._going:
            raise ServerNotReady(f"servers have come back, and job {job} is going back to its snapshot")

    def sleeps(self, job: str) -> bool:
        """Whether the job has a snapshot that nobody has come to.

        Raises:
            ServerNotReady: it goes back to a snapshot now, or may be about to.
        """
        if not self._listed or job in self._going:
            raise ServerNotReady(f"job {job} is going back to its snapshot: drop it when it has")
        return job in self._asleep or job in self._refused

    def dismiss(self, job: str) -> None:
        """The job was dropped: it is not woken any more."""
        self._asleep.discard(job)
        self._refused.pop(job, None)

    def begin(self) -> None:
        """The coordinator has started: jobs go on from their snapshots when somebody comes to them."""
        if self._snapshots is not None:
            self._listed = False
            self._listing = watched.endless_task("looking for jobs to go back", self._list, log=logger)

    def lost(self, shard: int) -> None:
        """A shard came back without what it held: every job had a slice of its weights there."""
        if self._closed:  # the process ends, and hands nothing on
            return
        self._lost.add(shard)
        for runner in self._runners.values():
            runner.loses(shard)
        self._asleep |= self._refused.keys()  # the shard may have come back with more memory
        self._refused.clear()
        for job in self._runners.keys() | self._going.keys():
            self._start(job)

    async def go_back(self, job: str, snapshot: str) -> int:
        """A person wants it: a job goes back to its newest snapshot, as if a shard had been lost.

        Args:
            job: its name; it need not run.
            snapshot: the name of that snapshot, which all shards have.

        Returns:
            The step that it goes on from.

        Raises:
            ConfigurationRefused: nothing is kept of jobs here.
            SnapshotMissing: this is not the newest one that can be used; nothing happens.
            SnapshotUnusable: a shard cannot use it.
            RestoredTooOften: the job has done so `RESTORES` times in a short time.
            ServerNotReady: the coordinator stops.
            MemoryLimitExceeded: it does not fit into a shard; it is kept, and nobody trains the job.
        """
        if self._snapshots is None:
            raise ConfigurationRefused("jobs cannot go back: start the servers with --snapshot-dir")
        look = partial(next, self._saved(job), None)
        saved: SavedJob | None = await self._fleet.beside.run(job, look)
        if saved is None or saved.snapshot != snapshot:
            raise SnapshotMissing(
                f"{snapshot[:64]!r} is not the newest snapshot of job {job} that can be used; if the servers "
                "have just taken another one, bring it again"
            )
        if (wait_s := self._restores.wait_s(job, self._clock())) > 0:
            raise RestoredTooOften(
                f"job {job} has gone back {RESTORES} times in {RESTORES_WITHIN_S:g} s: try again in "
                f"{wait_s:.0f} s",
                wait_s=wait_s,
            )
        self._restores.take(job, self._clock())
        self._went_to.pop(job, None)
        self._asleep.discard(job)
        self._refused.pop(job, None)
        await asyncio.wait([self._start(job)])
        if (refused := self._refused.get(job)) is not None:
            raise refused.error
        if self._went_to.get(job) != snapshot:
            raise SnapshotUnusable(f"job {job} could not go back to {snapshot}: the servers' logs say why")
        return saved.step

    def close(self) -> None:
        """No job begins to go back any more: a successor is told of jobs as they are."""
        self._closed = True

    def stop(self) -> None:
        """Ends what is under way."""
        self.close()
        for task in (self._listing, *self._going.values()):
            if task is not None:
                task.cancel()

    def _start(self, job: str) -> asyncio.Task[None]:
        """The job goes back, once more if it does now.

        Raises:
            ServerNotReady: the coordinator stops.
        """
        if self._closed:
            raise ServerNotReady("shard 0 stops: come again to the one after it")
        self._pending.add(job)
        if job not in self._going:
            self._going[job] = watched.endless_task(
                f"going back of job {job}", partial(self._run, job), log=logger
            )
        return self._going[job]

    async def _run(self, name: str) -> None:
        while name in self._pending:
            self._pending.discard(name)
            try:
                await self._recover(name)
            except Exception:  # noqa: BLE001 - its members are not to wait for ever
                logger.exception("job %s: bug while it goes back to its snapshot", name)
                await self._give_up(name)
        del self._going[name]
        if not self._going:
            self._lost.clear()

    async def _list(self) -> None:
        """Finds the jobs to sleep on: none of them is to begin anew where storage does not answer."""
        while not self._listed and self._snapshots is not None:
            try:
                found = set(await asyncio.to_thread(self._snapshots.jobs))
                self._asleep = found - self._runners.keys() - self._going.keys() - self._refused.keys()
                self._listed = True
            except PsError as error:
                logger.error("nobody can join: %s; trying again", error)
                await asyncio.sleep(LIST_AGAIN_S)

    async def _recover(self, name: str) -> None:
        runner = self._runners.get(name)
        self._scheduler.goes_back(name)
        if runner is not None:
            await runner.freeze()
        await self._fleet.wait_complete(None)
        await self._scheduler.over(name)
        try:
            async with self._room:
                self._pending.discard(name)  # all that was lost until here it goes back for now
                await self._take_back(name, runner)
        except ServerNotReady as error:  # a shard has gone again: from the beginning
            logger.warning("job %s: %s", name, error)
            self._pending.add(name)
            await asyncio.sleep(AGAIN_S)
        except SnapshotFailed as error:  # storage does not answer: what is there is not lost for that
            self._complain(name, "cannot go back: %s; trying again", error)
            self._pending.add(name)
            await asyncio.sleep(LIST_AGAIN_S)

    async def _take_back(self, name: str, runner: JobRunner | None) -> None:
        """To the newest snapshot that can be used; without one, the job ends.

        Raises:
            ServerNotReady: a shard has gone.
            SnapshotFailed: it is not known which there are.
        """
        snapshots = self._saved(name)
        elsewhere: SnapshotUnusable | None = None
        generation = 0  # one for all that are tried: nobody joins between
        for _ in range(TRIES):
            saved = await self._fleet.beside.run(name, next, snapshots, None)
            if saved is None:
                break
            try:
                _check_same(runner, saved)
                generation = generation or self._fleet.registry.generations.next()
                # As long as it takes: given again, it would be read twice, behind what is being read.
                await self._fleet.order(restoration(saved, generation), limit_s=None)
            except ServerNotReady:
                raise
            except MemoryLimitExceeded as error:  # nothing is wrong with the snapshot
                if name not in self._pending:  # else a shard has come back, perhaps with more memory
                    await self._refuse_too_large(name, saved, error)
                return
            except PsError as error:
                self._complain(name, "snapshot %s cannot be used: %s", saved.snapshot, error)
                elsewhere = elsewhere or self._of_others(saved, error)
                continue
            if name not in self._pending:  # else a shard has lost its part while others still read
                self._go_on(runner or self._runner_of(saved.job), saved, floor_of(generation))
            return
        if name in self._pending:
            return
        if elsewhere is not None and runner is None:  # it is not to begin anew beside what was trained
            await self._refuse(name, elsewhere)
        else:
            await self._give_up(name)

    async def _refuse_too_large(self, name: str, saved: SavedJob, error: MemoryLimitExceeded) -> None:
        too_large = MemoryLimitExceeded(
            f"job {name} goes on from its snapshot {saved.snapshot}, which is kept, once it fits: "
            f"{error.message}. Start the job again when other jobs have ended, or servers with a "
            "larger --memory-limit",
            **error.facts,
        )
        self._complain(name, "%s", too_large.message)
        await self._refuse(name, too_large)

    async def _refuse(self, name: str, error: PsError) -> None:
        """Gives the job up, then refuses it, whatever came of that: who hears so finds one that sleeps."""
        try:
            await self._give_up(name, error)
        finally:
            if name not in self._pending:  # else a shard has come back meanwhile, and it is tried again
                self._refused[name] = _Refusal(error, self._clock() + REFUSED_S)

    def _complain(self, name: str, text: str, *facts: object) -> None:
        self._fleet.own.complaints.say(logging.ERROR, f"job {name}", text, *facts)

    def _of_others(self, saved: SavedJob, error: PsError) -> SnapshotUnusable | None:
        """The error where a snapshot lacks parts that other servers than these have written: what to do."""
        if saved.num_shards in (0, self._fleet.num_shards) or not isinstance(error, SnapshotUnusable):
            return None
        return SnapshotUnusable(
            f"snapshot {saved.snapshot} of job {saved.job.name} is of {saved.num_shards} servers, here are "
            f"{self._fleet.num_shards}, and not all of it can be read: {error.message}. "
            f"Start {saved.num_shards} servers, or give all servers one --snapshot-dir that has all parts; "
            "to begin anew, take another --job",
            snapshot=saved.snapshot,
        )

    def _saved(self, name: str) -> Iterator[SavedJob]:
        """One after the other, on another thread: each may be large."""
        return iter(self._snapshots.saved(name) if self._snapshots is not None else ())

    def _go_on(self, runner: JobRunner, saved: SavedJob, floor: int) -> None:
        name = saved.job.name
        logger.warning("job %s: goes on from its snapshot %s, step %d", name, saved.snapshot, saved.step)
        self._states.drop(name, but="start/")
        for key, blob in saved.states.items():
            self._states.put(name, key, blob)
        self._went_to[name] = saved.snapshot
        self._asleep.discard(name)
        runner.roll_back(saved, floor=floor)
        self._on_restored()

    async def _give_up(self, name: str, why: PsError | None = None) -> None:
        """Members of a job hear why it ends, by default that it is lost; shards forget it."""
        runner = self._runners.get(name)
        if runner is None:  # nobody is there; some shards may have read their parts
            with suppress(PsError):
                await self._fleet.order(pb.Order(drop_job=pb.DropJob(job=name)))
            return
        error = why or self._is_lost(runner.job.name)
        runner.thaw([*runner.job.tell_all(error), *runner.job.drop()])

    def _is_lost(self, job: str) -> JobUnknown:
        shards = ", ".join(map(str, sorted(self._lost)))
        why = (
            "nothing is kept of it (--durability none)"
            if self._snapshots is None
            else "it has no snapshot that can be read"
        )
        return JobUnknown(
            f"shard {shards} was started again without its state: its part of job {job} is lost, for "
            f"{why}; start the job again, and servers with --snapshot-dir and --snapshot-every",
            shard=min(self._lost, default=0),
        )


def _check_same(runner: JobRunner | None, saved: SavedJob) -> None:
    """Refuses a snapshot of a job that trains otherwise than the one that is here."""
    if runner is None or runner.job.forgotten:
        return
    try:
        check_job(runner.job.spec, saved.job)
    except JobMismatch as error:
        facts = error.facts
        raise SnapshotMismatch(
            f"it is of a job that trains otherwise: {facts['what']}: the job has {facts['expected']}, the "
            f"snapshot {facts['got']}",
            **facts,
        ) from None


def floor_of(generation: int) -> int:
    """The last incarnation of workers that is over when shards have been restored under this generation.

    Whoever restores may not know how often workers have joined: it is above all that could have been given.
    """
    return generation * (MAX_GENERATION + 1)


def restoration(saved: SavedJob, generation: int) -> pb.Order:
    """The order for every shard to load its part, under this generation."""
    restore = pb.Restore(
        job=saved.job,
        tables=[table_to_proto(spec) for spec in saved.tables],
        snapshot=saved.snapshot,
        incarnation=floor_of(generation),
        step=saved.step,
        steps={table: max(clocks.values(), default=0) for table, clocks in saved.clocks.items()},
    )
    return pb.Order(restore=restore)
