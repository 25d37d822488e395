"""Snapshots of all jobs that are taken, on the coordinator: when they are due, and who waits for one.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.jobs.member import Member
from ps_server.coordinator.jobs.phase import JobState
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.snapshots.attempt import SnapshotAttempt
from ps_server.coordinator.snapshots.policy import SnapshotPolicy
from ps_server.coordinator.snapshots.taken import SnapshotFigures, TakenSnapshots
from ps_server.coordinator.state_store import StateStore
from ps_server.log import logger
from ps_wire.errors import (
    ConfigurationRefused,
    CutAborted,
    InternalError,
    JobUnknown,
    PsError,
    SnapshotFailed,
)
from ps_wire.process import watched
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.v1 import coordinator_pb2 as pb

LOOK_S = 0.1  # between two looks at jobs
SAY_S = 0.2  # between two words of how one gets on
TRIES = 3  # of a cut that was disturbed
LASTING = (JobState.RUNNING, JobState.ENDED)  # jobs of which there is something to keep


class SnapshotScheduler:
    """The scheduler of snapshots of all jobs: periodic ones, and those that somebody waits for."""

    def __init__(
        self,
        fleet: Fleet,
        runners: Mapping[str, JobRunner],
        states: StateStore,
        *,
        store: SnapshotStore | None,
        policy: SnapshotPolicy,
    ) -> None:
        """Takes none yet; `store`: None where there is none."""
        self._fleet = fleet
        self._runners = runners
        self._states = states
        self._store = store
        self._policy = policy
        self._numbers = itertools.count(secrets.randbits(32))
        self._attempts: dict[str, SnapshotAttempt] = {}
        self._tasks: dict[str, asyncio.Task[SnapshotAttempt]] = {}
        self._last: dict[str, tuple[int, float]] = {}  # job -> step and time of its last one
        self._tables: dict[str, int] = {}  # job -> tables that had started at its last one
        self._errors: dict[str, PsError] = {}
        self._training: set[str] = set()  # jobs that somebody has joined, and whose end was not seen
        self._barred: set[str] = set()  # jobs that are being dropped
        self._taken = TakenSnapshots()
        self._periodic: asyncio.Task[None] | None = None
        self._clocks = ThreadPoolExecutor(1, thread_name_prefix="ps-clock")

    def begin(self) -> None:
        """Takes snapshots when they are due, from now on."""
        if self._store is not None and (self._policy.every_steps or self._policy.every_s):
            self._periodic = watched.endless_task("periodic snapshots", self._run, log=logger)

    def stop(self) -> None:
        """Takes none any more."""
        if self._periodic is not None:
            self._periodic.cancel()
        for task in self._tasks.values():
            task.cancel()
        self._clocks.shutdown(wait=False)

    # -- what members say, and what becomes of them ----------------------------------------------------

    def ready(self, job: str, member: Member, number: int, steps: Mapping[int, int]) -> None:
        """See `SnapshotAttempt.ready`."""
        if job in self._attempts:
            self._attempts[job].ready(member, number, steps)

    def captured(self, job: str, member: Member, message: pb.CutCaptured) -> None:
        """See `SnapshotAttempt.captured`."""
        if job in self._attempts:
            self._attempts[job].captured(member, message)

    def gone(self, job: str, member: Member) -> None:
        """See `SnapshotAttempt.gone`."""
        if job in self._attempts:
            self._attempts[job].gone(member)

    def joins(self, job: str) -> None:
        """Somebody does: a cut would keep its pushes back, and waits until it is in."""
        self._training.add(job)
        self._taken.see(job, time.monotonic())
        if job in self._attempts:
            self._attempts[job].disturb(CutAborted(f"job {job}: a worker joined during the cut"))

    def goes_back(self, job: str) -> None:
        """The job goes back to an older snapshot: one of what it was is not taken any more."""
        self._last.pop(job, None)
        self._tables.pop(job, None)
        if job in self._attempts:
            self._attempts[job].disturb(SnapshotFailed(f"job {job} goes back to a snapshot"))

    async def bar(self, job: str) -> None:
        """The job is being dropped: none is taken until `unbar`; returns once none is under way."""
        self._barred.add(job)
        if job in self._attempts:
            self._attempts[job].disturb(SnapshotFailed(f"job {job} is being dropped"))
        await self.over(job)

    def unbar(self, job: str) -> None:
        """Takes snapshots of the job again: it is new from now on, or was not dropped after all."""
        self._barred.discard(job)

    def forget(self, job: str) -> None:
        """The job was dropped: nothing that was known of it holds for another one of its name."""
        self._last.pop(job, None)
        self._tables.pop(job, None)
        self._training.discard(job)
        self._taken.forget(job)

    def figures(self, job: str) -> SnapshotFigures | None:
        """The last complete one of a job; None where none are taken."""
        return None if self._store is None else self._taken.figures(job, time.monotonic())

    async def over(self, job: str) -> None:
        """Returns once none is under way: one that was given up is gone, and its manifest with it."""
        if job in self._attempts:
            await asyncio.wait([self._tasks[job]])

    # -- taking ----------------------------------------------------------------------------------------

    async def take(self, job: str) -> AsyncIterator[pb.SnapshotProgress]:
        """Takes a snapshot of a job, or waits for the one that is being taken; the last word is `done`.

        Raises:
            ConfigurationRefused: there is no --snapshot-dir.
            JobUnknown: there is no such job.
            PsError: it could not be taken.
        """
        runner = self._runners.get(job)
        if runner is None:
            raise JobUnknown(f"no job {job[:64]!r} here", job=job[:64])
        attempt = self._start(runner)
        task = self._tasks[job]
        while not task.done():
            await asyncio.wait([task], timeout=SAY_S)
            attempt = self._attempts.get(job, attempt)
            if attempt.manifest is None:
                yield attempt.progress
        attempt = task.result()
        if attempt.manifest is None:
            raise self._errors.get(job) or SnapshotFailed(f"job {job}: no snapshot was taken")
        yield attempt.progress

    async def name_to_bring(self, job: str) -> str:
        """See `SnapshotStore.name_to_bring`. Raises ConfigurationRefused: as `take`."""
        return await self._fleet.beside.run(job, self._place().name_to_bring, job)

    def _place(self) -> SnapshotStore:
        if self._store is None:
            raise ConfigurationRefused(
                "the servers have no place for snapshots: start them with --snapshot-dir"
            )
        return self._store

    def _start(self, runner: JobRunner) -> SnapshotAttempt:
        """The one that is being taken, else another one."""
        name = runner.job.name
        if name in self._barred:
            raise SnapshotFailed(f"job {name} is being dropped")
        if name not in self._attempts:
            attempt = self._attempts[name] = self._make(runner)
            self._errors.pop(name, None)
            task = self._tasks[name] = asyncio.get_running_loop().create_task(self._take(runner, attempt))
            watched.outcome(f"a snapshot of job {name}", task, log=logger)  # the periodic ones nobody awaits
        return self._attempts[name]

    def _make(self, runner: JobRunner) -> SnapshotAttempt:
        return SnapshotAttempt(
            runner,
            self._fleet,
            self._states,
            self._place(),
            number=next(self._numbers),
            keep=self._policy.keep,
        )

    async def _take(self, runner: JobRunner, attempt: SnapshotAttempt) -> SnapshotAttempt:
        """The last of its tries, after which it is known how far the job was."""
        name = runner.job.name
        try:
            last = await self._try(runner, attempt)
            self._last[name] = await self._step_of(runner), time.monotonic()
            self._tables[name] = runner.job.num_started
        finally:
            self._attempts.pop(name, None)
        return last

    async def _try(self, runner: JobRunner, attempt: SnapshotAttempt) -> SnapshotAttempt:
        """Some times; whatever comes of it, training goes on."""
        name = runner.job.name
        began_s = time.monotonic()
        try:
            for left in reversed(range(TRIES)):
                try:
                    manifest = await attempt.run(runner.cutting)
                    break
                except CutAborted as error:
                    if not left:
                        raise
                    self._fleet.own.complaints.say(logging.INFO, f"job {name}", "%s; trying again", error)
                    await asyncio.sleep(LOOK_S)
                    attempt.check_again()
                    attempt = self._attempts[name] = self._make(runner)
            runner.events.count("snapshot")
            now_s = time.monotonic()
            self._taken.complete(
                name,
                step=manifest.step,
                duration_s=now_s - began_s,
                nbytes=manifest.total_bytes,
                now_s=now_s,
            )
            logger.info(
                "job %s: snapshot %s of step %d, %d bytes, %.2f s",
                name,
                attempt.progress.snapshot,
                manifest.step,
                manifest.total_bytes,
                now_s - began_s,
            )
        except Exception as error:  # noqa: BLE001 - training goes on whatever it is
            self._errors[name] = error if isinstance(error, PsError) else InternalError.of(error)
            runner.events.count("snapshot_failed")
            if not isinstance(error, PsError):
                logger.exception("bug while a snapshot of job %s is taken", name)
            said = "NO SNAPSHOT: %s; the job goes on, and older snapshots stay"
            self._fleet.own.complaints.say(logging.ERROR, f"job {name}", said, error)
        return attempt

    # -- when they are due -----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for name in [name for name in self._last if name not in self._runners]:
                del self._last[name]
                self._tables.pop(name, None)
            bug = None
            for runner in list(self._runners.values()):
                try:
                    if self._may_be_due(runner) and self._is_due(runner, await self._step_of(runner)):
                        with suppress(PsError):  # it was said
                            self._start(runner)
                except Exception as error:  # noqa: BLE001 - other jobs have theirs all the same
                    bug = bug or error
            if bug is not None:
                raise bug

    def _may_be_due(self, runner: JobRunner) -> bool:
        known = self._runners.get(runner.job.name) is runner
        busy = runner.job.name in self._attempts or runner.job.name in self._barred
        return known and not busy and runner.job.state in LASTING

    def _is_due(self, runner: JobRunner, step: int) -> bool:
        name = runner.job.name
        if not self._may_be_due(runner):  # any more: another thread has looked at the step
            return False
        if runner.job.state is JobState.ENDED:  # once, whatever its step
            ends = name in self._training
            self._training.discard(name)
            return ends
        now_s = time.monotonic()
        last_step, last_s = self._last.setdefault(name, (step, now_s))
        if step < last_step:  # the fastest has gone: the others have it as far to the next one as before
            last_step, _ = self._last[name] = step, last_s
        if runner.job.num_started > self._tables.get(name, runner.job.num_started):
            return True  # workers could not go back to one that has not all tables
        every_steps, every_s = self._policy.every_steps, self._policy.every_s
        if every_steps:
            return step // every_steps > last_step // every_steps
        return now_s - last_s >= every_s and step > last_step

    async def _step_of(self, runner: JobRunner) -> int:
        """The largest step that anybody who is here has begun, as this process sees it."""
        here = {member.worker for member in runner.job.roster.here()}
        steps = [progress.step for worker, progress in runner.progress.items() if worker in here]
        loop, own = asyncio.get_running_loop(), self._fleet.own  # cells have locks, storage may be slow
        newest = await loop.run_in_executor(self._clocks, own.newest_clock, runner.job.name)
        return max([newest, *steps])
