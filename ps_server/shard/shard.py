"""All jobs on this shard: their members, tables and tokens, and the memory they may take.

The coordinator's orders change it; connections look up what they may touch. It must not know gRPC.
The lock of `ShardJobs` guards the maps; it is never held while tensors are worked on.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn, TypeAlias

import torch

from ps_server.agreement.attendance import Choice
from ps_server.agreement.messages import Report
from ps_server.agreement.report_outlet import ReportOutlet
from ps_server.events import Event, line_of
from ps_server.log import logger
from ps_server.rpc.complaints import Complaints
from ps_server.shard.connection_tokens import ConnectionTokens, owner_of
from ps_server.shard.job import ShardJob
from ps_server.shard.jobs import ShardJobs
from ps_server.shard.members import ShardMembers
from ps_server.shard.memory_budget import MemoryBudget
from ps_server.shard.optimizer import piece_optimizer
from ps_server.shard.optimizer.device_optimizer import HOST, optimizer_on
from ps_server.shard.sessions import Retirable
from ps_server.shard.state.snapshot_reader import SnapshotReader
from ps_server.shard.state.snapshots import ShardSnapshots
from ps_server.shard.table.kept_hyperparameters import most_sets
from ps_server.shard.table.table import ShardTable
from ps_server.shard.table.table_state import TableState
from ps_server.shard.traffic import Refused, Traffic
from ps_wire.errors import (
    ConfigurationRefused,
    JobUnknown,
    MemoryLimitExceeded,
    ServerNotReady,
    StrangerRefused,
)
from ps_wire.frames.carrier import Outlet
from ps_wire.frames.frame import FIRST_READER
from ps_wire.process.ranks import MAX_SIZE
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.spec import consistency
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import TableSpec

OpenPart: TypeAlias = Callable[
    [str, str, Sequence[TableSpec]], AbstractContextManager[Callable[[Plan, TableSpec], TableState]]
]
MAX_PARTITIONS = 32_768  # of a table here: 256 GiB at 8 MiB; each takes 50 us to open, and


class Shard:
    """One shard: jobs, tables, tokens and memory behind one lock of jobs. Thread-safe.

    Attributes:
        members: of its jobs.
        snapshots: of its jobs.
        complaints: lines of the log about peers that are refused.
        traffic: of all connections.
        generation: that it was given when it came as this shard, with what it holds, and of its
            connections: those of others are refused; 0: none yet.
        open_part: opens this shard's part of a snapshot: (job, its name, tables) -> a block that yields what
            reads one of these tables: (plan, table) -> state; raises where that cannot be done.
        reports: of norms and of backup workers, to the coordinator.
    """

    def __init__(
        self,
        *,
        index: int,
        num_shards: int,
        memory_limit_bytes: int | None,
        submit: Callable[[Callable[[], None]], None] | None = None,
        device: torch.device = HOST,
        store: SnapshotStore | None = None,
    ) -> None:
        """Has no table yet.

        Args:
            index: of this one.
            num_shards: of the service.
            memory_limit_bytes: for the tables of all jobs; None for no limit.
            submit: has complete steps closed on other threads; None: on the thread that completes one.
            device: on which optimizers run.
            store: of snapshots; None: it takes and reads none.
        """
        self._submit = submit
        self._make_optimizer = optimizer_on(device)
        self.index = index
        self.num_shards = num_shards
        self._refused: Counter[Refused] = Counter()  # under the lock of jobs
        self.traffic = Traffic()
        self.complaints = Complaints()
        self._budget = MemoryBudget(shard=index, limit_bytes=memory_limit_bytes, complaints=self.complaints)
        self.generation = 0
        self.reports = ReportOutlet()
        self.snapshots = ShardSnapshots(index, num_shards, self.table, store)
        self.open_part: OpenPart = _no_snapshots
        if store is not None:
            self.open_part = SnapshotReader(store, shard=index, num_shards=num_shards).open
        self._tokens = ConnectionTokens()
        self._jobs = ShardJobs(index)
        self.members = ShardMembers(self._jobs)

    # -- the coordinator's orders ----------------------------------------------------------------------

    def open_table(self, job: str, spec: TableSpec, opening: int = 0) -> None:
        """Allocates a table for a job that has members; `opening` is the number of the order.

        Raises:
            OptimizerUnsupported: the shards cannot run its optimizer.
            ConfigurationRefused: it clips the mean gradient, and the job has none.
            MemoryLimitExceeded: it does not fit; nothing was allocated.
        """
        piece_optimizer.check(spec.optimizer)
        plan = Plan(spec, self.num_shards)  # without the lock: it takes longer the more parameters there are
        with self._jobs.lock:
            entry = self._jobs.known(job)
            _check_clips(spec, entry.consistency)
            before = entry.tables.get(spec.number)  # an earlier try that not all shards could carry out
            if before is not None:
                assert not before.started, (job, spec.number)
                entry.release(self._needed_bytes(before.spec, before.plan, entry))
                entry.drop_table(spec.number)
            need = self._needed_bytes(spec, plan, entry)
            held = {other.name: other.memory_bytes for other in self._jobs.by_name.values()}
            fits = self._budget.fits(need, held)
            if fits:
                check_partitions(spec, plan, self.index)
                entry.reserve(need)
            members = dict(entry.members)
        if not fits:
            gate, num_workers = entry.gate, entry.num_workers
            raise self._budget.too_large(spec, job, gate, num_workers, need=need, held=held)
        try:
            table = ShardTable(
                job=job,
                spec=spec,
                plan=plan,
                shard=self.index,
                gate=entry.gate,
                nonfinite=entry.nonfinite,
                opening=opening,
                most_hyper=most_sets(spec.optimizer.hyperparameters, entry.num_workers),
                make_optimizer=self._make_optimizer,
                report=self.reports.send,
                submit=self._submit,
                complaints=self.complaints,
            )
            for worker, (incarnation, clocks) in members.items():
                table.join(worker, incarnation, clocks.get(spec.number, 0))
        except Exception as error:
            with self._jobs.lock:
                entry.release(need)
            if not _is_out_of_memory(error):
                raise
            raise MemoryLimitExceeded(
                f"table {spec.number} of job {job} needs {need} bytes on shard {self.index}, which the "
                f"system does not give: {error}",
                needed=need,
            ) from None
        with self._jobs.lock:
            entry.put_table(table)
        logger.info("job %s: table %d opened, %d bytes", job, spec.number, need)

    def _needed_bytes(self, spec: TableSpec, plan: Plan, job: ShardJob) -> int:
        return self._budget.needed_bytes(spec, plan, job.gate, job.num_workers)

    def start_table(self, job: str, number: int) -> None:
        """Members may push and pull; the weights are no longer loaded."""
        self.table(job, number).start()

    def put(self, job: ShardJob) -> None:
        """A job that was elsewhere before, or at another time."""
        self._jobs.put(job)

    def drop(self, job: str) -> ShardJob | None:
        """Forgets a job and returns it; its memory is free when nobody has it any more."""
        return self._jobs.drop(job)

    def end(self, job: str) -> ShardJob | None:
        """Forgets a job and returns it; who is still in it hears why from the coordinator."""
        return self._jobs.end(job)

    def begin(self, generation: int) -> None:
        """From now on the shard is of this generation; if it was of another one, what it holds is void."""
        if generation != self.generation:
            self.void()
            self.become(generation)

    def become(self, generation: int) -> None:
        """It is of this generation from now on, with what it holds."""
        self.generation = generation

    def void(self) -> None:
        """The service goes on without what this shard holds."""
        for entry in self.jobs():
            entry.say(Event.LOSE, shard=self.index, generation=self.generation)
            self.end(entry.name)

    def retire(self) -> None:
        """Nothing more is taken of any worker; what was taken is finished."""
        for entry in self.jobs():
            entry.retire()

    def decide(self, job: str, number: int, *, opening: int, step: int, scale: float) -> None:
        """A clipped step closes with this scale; one of a table that is gone is ignored."""
        table = self._opened(job, number, opening)
        if table is not None:
            table.closer.decide(step, scale)

    def choose(self, job: str, number: int, *, opening: int, choice: Choice) -> None:
        """See `StepCloser.choose`; of a table that is gone it is ignored."""
        table = self._opened(job, number, opening)
        if table is not None:
            table.closer.choose(choice)

    def _opened(self, job: str, number: int, opening: int) -> ShardTable | None:
        with self._jobs.lock:
            entry = self._jobs.by_name.get(job)
            table = entry.tables.get(number) if entry is not None else None
        return table if table is not None and table.opening == opening else None

    def pending(self) -> list[Report]:
        """Reports from which something may follow, of all jobs, for who begins to coordinate."""
        return [report for table in self._tables() for report in table.closer.pending()]

    def _tables(self) -> list[ShardTable]:
        with self._jobs.lock:
            return [table for entry in self._jobs.by_name.values() for table in entry.tables.values()]

    # -- connections -----------------------------------------------------------------------------------

    def check_generation(self, generation: int) -> None:
        """Refuses who means another process or time of this shard; 0: whichever this is.

        Raises:
            ServerNotReady: it is to connect anew.
        """
        if generation not in (0, self.generation):
            raise ServerNotReady(
                f"shard {self.index} is of generation {self.generation}, not {generation}: connect again",
                generation=self.generation,
            )

    def make_token(self, job: str, worker: int, incarnation: int, rank: int = 0) -> bytes:
        """A token good for one connection of this rank of a worker.

        Raises:
            JobUnknown: the job is not on this shard.
            StrangerRefused: the worker has not joined, or another incarnation of it has; or no group has such
                a rank.
            Evicted, RolledBack, ServerNotReady: see `ShardJob.check_known`.
        """
        with self._jobs.lock:
            entry = self._jobs.known(job)
            entry.check_known(worker, incarnation)
            check_rank(worker, rank)
            token = self._tokens.draw(job, worker, incarnation, rank)
            entry.tokens.keep(token, worker, incarnation, rank)
            return token

    def use_token(self, job: str, worker: int, incarnation: int, token: bytes, rank: int = 0) -> None:
        """Takes a token back; it is good once.

        Who was never given it for this rank of this worker hears the same of every job, whether it is here
        or not.

        Raises:
            JobUnknown, StrangerRefused: as for `make_token`, or the token is not one of this rank's.
        """
        self._tokens.check(token, job, worker, incarnation, rank)
        with self._jobs.lock:
            entry = self._jobs.known(job)
            entry.check_known(worker, incarnation)
            is_good = entry.tokens.use(token, worker, incarnation, rank)
        if not is_good:
            raise StrangerRefused(
                f"{owner_of(job, worker)}: this token is used up, or others have been given out since"
            )

    def is_member(self, job: str, worker: int, incarnation: int) -> bool:
        """Whether this worker's pulls go through the gate."""
        with self._jobs.lock:
            entry = self._jobs.by_name.get(job)
            return entry is not None and entry.is_member(worker, incarnation)

    def table_of(self, job: str, number: int, worker: int, incarnation: int, *, writes: bool) -> ShardTable:
        """A table of a job, for one of its workers.

        Raises:
            JobUnknown: the job, or this table of it, is not on this shard.
            StrangerRefused: the worker has not joined, or another incarnation of it has; or it writes and is
                no member (any more).
        """
        with self._jobs.lock:
            entry = self._jobs.known(job)
            entry.check_known(worker, incarnation)
            if writes and not entry.is_member(worker, incarnation):
                raise StrangerRefused(
                    f"worker {worker} of job {job} may only read: it has finished, or is no member",
                    worker=worker,
                )
        return self.table(job, number)

    def table(self, job: str, number: int) -> ShardTable:
        """A table of a job.

        Raises:
            JobUnknown: the job, or this table of it, is not on this shard.
        """
        with self._jobs.lock:
            table = self._jobs.known(job).tables.get(number)
        if table is None:
            raise JobUnknown(f"job {job} has no table {number} on shard {self.index}", job=job, table=number)
        return table

    def replace_session(
        self, job: str, worker: int, incarnation: int, session: Retirable, rank: int = 0
    ) -> Retirable | None:
        """Makes `session` the live one of this rank; returns the one before, which is to be retired.

        Those of other ranks of the same worker stay. Who was fenced since its token was taken gets none: no
        fence would find it, and end it.

        Raises:
            PsError: as for `make_token`.
        """
        with self._jobs.lock:
            entry = self._jobs.known(job)
            entry.check_known(worker, incarnation)
            before, again = entry.connect(worker, rank, session)
        if again:  # who has its connections break again and again has a few lines
            line = line_of(Event.RETRY, {"worker": worker, "incarnation": incarnation})
            self.complaints.say(logging.INFO, f"job {job}", "%s", line, of=(job, worker, "retry"))
        return before

    def forget(self, job: str, worker: int, session: Retirable, outlet: Outlet, rank: int = 0) -> None:
        """A connection of this job is gone."""
        with self._jobs.lock:
            entry = self._jobs.by_name.get(job)
            if entry is not None:
                entry.sessions.forget(worker, rank, session)
            tables = list(entry.tables.values()) if entry is not None else []
        for table in tables:
            table.forget(outlet)

    def count_refused(self, what: Refused = Refused.FRAME) -> None:
        """A frame was malformed, unknown, or from a stranger; or there was not even one."""
        with self._jobs.lock:
            self._refused[what] += 1

    @property
    def memory_limit_bytes(self) -> int | None:
        """For the tables of all jobs; None: there is no limit."""
        return self._budget.limit_bytes

    @property
    def refused_frames(self) -> int:
        """Frames, connections and calls that were refused."""
        with self._jobs.lock:
            return self._refused.total()

    def refusals(self) -> dict[Refused, int]:
        """How often each kind was refused."""
        with self._jobs.lock:
            return {kind: self._refused[kind] for kind in Refused}

    def jobs(self) -> tuple[ShardJob, ...]:
        """All jobs, to be read for figures only."""
        return self._jobs.all()

    def newest_clock(self, job: str) -> int:
        """The largest clock of a member of a job, over its tables; waits for locks of cells."""
        with self._jobs.lock:
            entry = self._jobs.by_name.get(job)
            tables = list(entry.tables.values()) if entry is not None else []
        return max((table.newest_clock() for table in tables), default=0)


def check_rank(worker: int, rank: int) -> None:
    """Refuses a rank that no group has, and a reader that is a group.

    Raises:
        StrangerRefused: naming it.
    """
    if rank >= (1 if worker >= FIRST_READER else MAX_SIZE):
        raise StrangerRefused(f"there is no rank {rank} of worker {worker}: a group has at most {MAX_SIZE}")


def _is_out_of_memory(error: Exception) -> bool:
    """Whether it is the system that has no more; torch's allocators say it by RuntimeError."""
    if isinstance(error, RuntimeError):
        return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
    return isinstance(error, (OSError, MemoryError, OverflowError))


def check_partitions(spec: TableSpec, plan: Plan, shard: int) -> None:
    """Refuses a table of more partitions than a shard opens in seconds.

    Raises:
        ConfigurationRefused: with the way out.
    """
    count = plan.count_of_shard(shard)
    if count > MAX_PARTITIONS:
        raise ConfigurationRefused(
            f"table {spec.number} has {count} partitions on shard {shard}, and a shard holds at most "
            f"{MAX_PARTITIONS} of one: give BucketOptions a larger partition_bytes (here "
            f"{spec.buckets.partition_bytes}), or use more shards"
        )


def _check_clips(spec: TableSpec, model: consistency.Consistency) -> None:
    if spec.clip_grad_norm is not None and not model.aggregates:
        raise ConfigurationRefused(
            f"table {spec.number}: clip_grad_norm scales the mean gradient of a step, which {model} does not "
            "form: clip on each worker, or use bsp"
        )


def _no_snapshots(job: str, snapshot: str, _tables: Sequence[TableSpec]) -> NoReturn:
    raise ConfigurationRefused(f"job {job}: this shard has no --snapshot-dir to read {snapshot} from")
