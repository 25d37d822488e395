"""One snapshot of one job, from the question to its workers to the manifest: on the coordinator.

    prepare   every worker that trains says from which step on it can still capture its state, and begins
              none of those
    arm       the shards learn the cut; then the workers do, and go on
    cut       each partition is copied when it has what is below the cut; each worker's state when it begins
              the cut's step; who goes meanwhile is left out
    write     shards write on threads of their own, and training goes on; the manifest comes last

The first two, in which workers may be held, take at most `ARM_LIMIT_S`, and with the third `CAPTURE_LIMIT_S`,
or the cut is given up. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from ps_server.agreement.cut_points import clocks_of_snapshot, first_steps
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.jobs.actions import tell
from ps_server.coordinator.jobs.member import Member, MemberState
from ps_server.coordinator.jobs.phase import JobState
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.state_store import CAPTURED, MAX_SAVED_BYTES, StateStore
from ps_server.log import logger
from ps_wire.errors import CutAborted, JobUnknown, PsError, SnapshotFailed
from ps_wire.snapshot.json_fields import MAX_SAMPLES
from ps_wire.snapshot.manifest import FINAL_FILE, FileRecord, Manifest, SavedWorker, worker_file
from ps_wire.snapshot.saved_epoch import SavedEpoch
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb

CAPTURE_LIMIT_S = 60.0
ARM_LIMIT_S = 10.0  # workers that hear nothing go on after 15 s
LOOK_S = 0.05  # between two looks at the shards
WRITERS = 4  # threads on which workers' files are written: its own, for slow storage holds up nobody else
IN_ORDER = (MemberState.FINISHING, MemberState.FINISHED, MemberState.LEAVING, MemberState.LEFT)

_Result = TypeVar("_Result")


class SnapshotAttempt:
    """One attempt to take a snapshot of one job.

    Attributes:
        progress: for whoever waits.
        manifest: once the snapshot is complete.
    """

    def __init__(
        self,
        runner: JobRunner,
        fleet: Fleet,
        states: StateStore,
        store: SnapshotStore,
        *,
        number: int,
        keep: int,
    ) -> None:
        """Does nothing yet; `number` is the cut's, and of no other."""
        self.progress = pb.SnapshotProgress(phase="beginning")
        self.manifest: Manifest | None = None
        self._runner = runner
        self._job = runner.job
        self._fleet = fleet
        self._states = states
        self._store = store
        self._number = number
        self._keep = keep
        self._name = ""
        self._members: dict[int, Member] = {}
        self._ready: dict[int, Mapping[int, int]] = {}
        self._writes: dict[int, asyncio.Future[FileRecord]] = {}
        self._steps: dict[int, dict[int, int]] = {}  # table -> worker -> the cut
        self._aborted: PsError | None = None
        self._shares: tuple[SavedEpoch, ...] | None = None  # at the cut
        self._over = False
        self._ended = False  # the job has: it is of the end
        self._specs: tuple[TableSpec, ...] = ()  # as the shards cut them
        self._changed = asyncio.Event()
        self._threads = ThreadPoolExecutor(WRITERS, thread_name_prefix="ps-snapshot")

    # -- what members say, and what becomes of them ----------------------------------------------------

    def ready(self, member: Member, number: int, steps: Mapping[int, int]) -> None:
        """A worker begins none of these steps, by table, before it hears more of the cut of that number."""
        if number == self._number and self._members.get(member.worker) is member:
            self._ready[member.worker] = steps
            self._changed.set()

    def captured(self, member: Member, message: pb.CutCaptured) -> None:
        """A worker has put its state. It is ignored where the cut is over: another one's may be there."""
        if message.number == self._number and self._members.get(member.worker) is member:
            try:
                blob = self._states.pop(self._job.name, f"{CAPTURED}/{member.worker}")
            except JobUnknown:  # the cut has just been given up, and with it what was put
                return
            if self._over:  # it is being given up: nothing is written where all is deleted
                return
            file = worker_file(member.worker)
            write = self._on_storage(self._store.write, self._job.name, self._name, file, [blob])
            write.add_done_callback(lambda it: it.cancelled() or it.exception())  # of several, one is raised
            self._writes[member.worker] = write
            self._changed.set()

    def gone(self, member: Member) -> None:
        """A worker trains no more: it leaves the cut, unless it has captured its state and goes in order.

        All that such a one has pushed counts, so it is at the cut as the others are; of one that is evicted
        a push may be missing.

        Who went on beyond the cut has used samples in steps that are not in it. Which they are is known no
        more once it is gone: before all are at the cut, this one is given up.
        """
        if self._members.get(member.worker) is not member:
            return
        if self._shares is None and self._may_be_beyond(member):
            self.disturb(CutAborted(f"job {self._job.name}: worker {member.worker} went during the cut"))
        if member.state in IN_ORDER and member.worker in self._writes:
            return
        del self._members[member.worker]
        self._changed.set()

    def _may_be_beyond(self, member: Member) -> bool:
        """Whether it may have taken steps that are not in the cut; of one that is evicted it is not known."""
        cut = max((steps.get(member.worker, 0) for steps in self._steps.values()), default=None)
        return cut is not None and (member.state not in IN_ORDER or member.steps > cut)

    def disturb(self, error: PsError) -> None:
        """Something else has to happen first: the cut is given up, if it is not over."""
        if self._aborted is None or isinstance(self._aborted, CutAborted):
            self._aborted = error
        self._changed.set()

    def check_again(self) -> None:
        """Raises why another try after this one would be of no use."""
        if not isinstance(self._aborted, CutAborted):
            self._check()

    # -- from the question to the manifest -------------------------------------------------------------

    async def run(self, lock: asyncio.Lock) -> Manifest:
        """Takes it; `lock` is held while partitions are cut.

        Raises:
            CutAborted: it did not come about; another try may succeed.
            PsError: it could not be taken or written.
        """
        try:
            self._name = await self._on_storage(self._store.new_name, self._job.name)
            return await self._take(lock)
        finally:
            self._threads.shutdown(wait=False)

    async def _take(self, lock: asyncio.Lock) -> Manifest:
        stops = False
        try:
            async with lock:
                await self._cut()
            self.manifest = await self._write()
        except asyncio.CancelledError:  # this process does: shards give up by themselves
            stops = True
            raise
        finally:
            self._over = True
            for write in self._writes.values():
                write.cancel()
            self._let_go()
            if not stops:
                await self._end()
        return self.manifest

    async def _cut(self) -> None:
        try:
            async with asyncio.timeout(CAPTURE_LIMIT_S):
                while not self._runner.idle:  # a change of members is under way
                    await self._runner.changed()
                if self._job.state is JobState.ENDED:
                    self._ended = True
                    await self._arm()
                    return
                while not await self._agree():
                    pass
                await self._wait(self._all_captured, "workers to reach the cut")
                newest = {
                    worker: max(steps[worker] for steps in self._steps.values()) for worker in self._members
                }  # now: of who goes while shards still write it is known no more
                self._shares = tuple(self._job.epochs.capture(newest))
                if not self._members:
                    raise CutAborted(f"job {self._job.name}: all workers finished during the cut")
                while saved := await self._look():
                    if not any(item.waiting for item in saved):
                        return
                    waiting = sum(item.waiting for item in saved)
                    self.progress.phase = f"waiting for {waiting} partitions to reach the cut"
                    self._check()
        except TimeoutError:
            late = [f"worker {worker}" for worker in sorted(self._members) if worker not in self._writes]
            raise CutAborted(
                f"job {self._job.name}: the cut did not come about in {CAPTURE_LIMIT_S:g} s: "
                + (", ".join(late) + " took no step" if late else self.progress.phase)
            ) from None

    async def _agree(self) -> bool:
        """Fixes the cut, while workers are held; whether all of them have all tables."""
        try:
            async with asyncio.timeout(ARM_LIMIT_S):
                if await self._prepare():
                    await self._arm()
                    return True
        except TimeoutError:
            silent = [f"worker {worker}" for worker in sorted(self._members.keys() - self._ready.keys())]
            raise CutAborted(
                f"job {self._job.name}: in {ARM_LIMIT_S:g} s not answered whether a cut may come: "
                + (", ".join(silent) or "a shard")
            ) from None
        self._let_go()
        await asyncio.sleep(LOOK_S)  # somebody is still making tables
        return False

    async def _prepare(self) -> bool:
        """Asks all who train; whether all of them have all tables."""
        job = self._job
        if job.state is not JobState.RUNNING:
            raise SnapshotFailed(f"job {job.name} is {job.state.value}: snapshots are taken while it runs")
        self._ready.clear()
        self._members = {member.worker: member for member in job.roster.here()}
        prepare = pb.CutPrepare(number=self._number)
        self._runner.do([tell(member, cut_prepare=prepare) for member in self._members.values()])
        await self._wait(lambda: self._members.keys() <= self._ready.keys(), "workers to answer")
        if not self._members:
            raise SnapshotFailed(f"job {job.name}: no worker trains")
        tables = set(range(job.num_tables))
        return all(tables <= self._ready[worker].keys() for worker in self._members)

    async def _arm(self) -> None:
        self._specs = tuple(self._job.specs)
        for table in range(len(self._specs)):
            asked = {worker: self._ready[worker][table] for worker in self._members}
            self._steps[table] = clocks_of_snapshot(self._job.gate, asked)
        save = self._order()
        for table, clocks in self._steps.items():
            save.tables.add(table=table, clocks=clocks)
        await self._fleet.order(pb.Order(save_cut=save))
        for worker, member in self._members.items():
            steps = {table: clocks[worker] for table, clocks in self._steps.items()}
            self._runner.do([tell(member, cut_armed=pb.CutArmed(number=self._number, steps=steps))])

    def _let_go(self) -> None:
        for member in self._members.values():
            self._runner.do([tell(member, cut_ended=pb.CutEnded(number=self._number))])

    def _all_captured(self) -> bool:
        return self._members.keys() <= self._writes.keys()

    async def _write(self) -> Manifest:
        self.progress.phase = "writing"
        saved = await self._look()
        while not all(item.file for item in saved):
            self._check()
            saved = await self._look()
        records = [FileRecord(name=item.file, bytes=item.bytes, sha256=item.sha256) for item in saved]
        workers = sorted(worker for worker in self._members if worker in self._writes)
        records += (states := [await self._writes[worker] for worker in workers])
        if (total := sum(record.bytes for record in states)) > MAX_SAVED_BYTES:
            raise SnapshotFailed(
                f"what workers have beside tables (buffers, registered state) is {total} bytes, over "
                f"{MAX_SAVED_BYTES}: shard 0 could not hold it when the job goes back"
            )
        ended = self._ended
        if not workers and not ended:  # what workers had is gone with them, and where they were
            raise SnapshotFailed(f"job {self._job.name}: all workers were evicted before it was written")
        if ended and self._job.phase.has_final_state:
            blob = self._states.get(self._job.name, "final")
            records.append(
                await self._on_storage(self._store.write, self._job.name, self._name, FINAL_FILE, [blob])
            )
        counters = [json.loads(item.counters) for item in saved]
        manifest = self._describe(records, workers, counters, ended=ended)
        await self._on_storage(self._fleet.registry.generations.check)  # nothing of one that is fenced
        self._check()
        await self._on_storage(self._store.complete, self._job.name, self._name, manifest)
        self._check()  # else it is deleted: its history was undone meanwhile
        self.progress = pb.SnapshotProgress(
            phase="done",
            bytes=manifest.total_bytes,
            total_bytes=manifest.total_bytes,
            snapshot=self._store.where(self._job.name, self._name),
            step=manifest.step,
        )
        return manifest

    def _describe(
        self,
        records: list[FileRecord],
        workers: list[int],
        counters: list[Mapping[str, Any]],
        *,
        ended: bool,
    ) -> Manifest:
        job = self._job
        over = (MemberState.FINISHING, MemberState.FINISHED)
        finished = {it.worker: it.steps for it in job.roster.members.values() if it.state in over}
        clocks = {
            table: first_steps(job.gate, steps, workers, finished) for table, steps in self._steps.items()
        }
        newest = {worker: max(steps[worker] for steps in clocks.values()) for worker in workers}
        if ended:
            newest_clocks = job.starts.first_steps.newest
            clocks = {
                table: dict.fromkeys(job.roster.members, newest_clocks.get(table, 0)) for table in self._steps
            }
        return Manifest(
            number=int(self._name.partition("-")[0]),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            generation=self._fleet.own.generation,
            job=job.spec,
            num_shards=self._fleet.num_shards,
            tables=self._specs,
            clocks=clocks,
            files=tuple(records),
            workers={
                worker: SavedWorker(
                    incarnation=self._members[worker].incarnation,
                    lease_s=self._members[worker].lease_s,
                    samples=min(self._runner.progress.get(worker, pb.Progress()).samples, MAX_SAMPLES),
                )
                for worker in workers
            },
            shares=tuple(job.epochs.capture(newest)) if self._shares is None else self._shares,
            ended=ended,
            counters={table: _merged([counts[str(table)] for counts in counters]) for table in self._steps},
        )

    # -- inside ----------------------------------------------------------------------------------------

    def _order(self) -> pb.Save:
        return pb.Save(job=self._job.name, snapshot=self._name, number=self._number)

    def _on_storage(self, work: Callable[..., _Result], *arguments: object) -> asyncio.Future[_Result]:
        return asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *arguments))

    async def _look(self) -> list[pb.Saved]:
        await asyncio.sleep(LOOK_S)
        saved = [done.saved for done in await self._fleet.order_each(pb.Order(look_save=self._order()))]
        self.progress.bytes = sum(item.bytes for item in saved)
        self.progress.total_bytes = sum(item.total_bytes for item in saved)
        return saved

    async def _wait(self, over: Any, what: str) -> None:
        self.progress.phase = f"waiting for {what}"
        while not over():
            self._changed.clear()
            self._check()
            await self._changed.wait()
        self._check()

    def _check(self) -> None:
        if self._aborted is not None:
            raise self._aborted

    async def _end(self) -> None:
        """Shards let go of it. One that did not become complete is deleted."""
        end = self._order()
        if self.manifest is not None:
            end.manifest, end.keep = self.manifest.text().encode(), self._keep
        with suppress(PsError):  # a shard that does not hear of it gives up by itself
            await self._fleet.order(pb.Order(end_save=end), absent_ok=True)
        for worker in list(self._members):
            with suppress(JobUnknown):
                self._states.pop(self._job.name, f"{CAPTURED}/{worker}")
        if self.manifest is None and self._name:
            with suppress(PsError):
                await self._on_storage(self._store.delete, self._job.name, self._name)
            return
        try:
            job, keep_last = self._job.name, self._store.keep_last
            for name in await self._on_storage(keep_last, job, self._keep, self._name):
                logger.info("job %s: snapshot %s deleted", job, name)
        except PsError as error:
            logger.warning("job %s: %s", job, error)


def _merged(counts: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts over all shards; `unequal`: partitions with another history than most have."""
    alike: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for one in counts:
        alike.update(one.pop("alike"))
        total.update(one)
    return {**total, "partitions": alike.total(), "unequal": alike.total() - max(alike.values(), default=0)}
