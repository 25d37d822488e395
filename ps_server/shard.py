"""All jobs on this shard: their members, tables and tokens, and the memory they may take.

The coordinator's orders change it; connections look up what they may touch. It must not know gRPC.
`_lock` guards the maps; it is never held while tensors are worked on.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ps_server import optimizers
from ps_server.clipping import Norm
from ps_server.gate import gate_of
from ps_server.log import logger
from ps_server.shard_table import ShardTable
from ps_wire import consistency
from ps_wire.carrier import Outlet
from ps_wire.errors import ConfigurationRefused, JobUnknown, MemoryLimitExceeded, StrangerRefused
from ps_wire.frame import FIRST_READER
from ps_wire.nonfinite import NonFinite
from ps_wire.plan import Plan
from ps_wire.table import TableSpec

TOKEN_BYTES = 16
MAX_TOKENS = 16  # a worker's that it has asked for and not used; older ones are void


class Retirable(Protocol):
    """A connection that another one can replace.

    Attributes:
        carrier: its name.
    """

    carrier: str

    def retire(self) -> None:
        """Takes no more frames; waits for the one that is being taken."""
        ...


@dataclass(slots=True)
class ShardJob:
    """A job's part on this shard.

    Attributes:
        members: worker -> (incarnation, first step by table); those in the gates.
        known: worker -> live incarnation; members, and those who may only read.
        tokens: (worker, incarnation) -> tokens good for one connection each.
        sessions: worker -> its live connection.
    """

    name: str
    consistency: consistency.Consistency
    num_workers: int
    nonfinite: NonFinite = NonFinite.ERROR
    members: dict[int, tuple[int, Mapping[int, int]]] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)
    tables: dict[int, ShardTable] = field(default_factory=dict)
    tokens: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    sessions: dict[int, Retirable] = field(default_factory=dict)
    memory_bytes: int = 0


class Shard:
    """See the module's docstring. Thread-safe.

    Attributes:
        on_norm: takes a norm to the coordinator; called on any thread, must not block.
    """

    def __init__(
        self,
        *,
        index: int,
        num_shards: int,
        memory_limit_bytes: int | None,
        submit: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`submit` has complete steps closed on other threads; None: on the thread that completes one."""
        self._submit = submit
        self.index = index
        self.num_shards = num_shards
        self.memory_limit_bytes = memory_limit_bytes
        self.refused_frames = 0
        self.on_norm: Callable[[Norm], None] = _lose
        self._jobs: dict[str, ShardJob] = {}
        self._lock = threading.Lock()

    # -- the coordinator's orders ----------------------------------------------------------------------

    def admit(
        self,
        *,
        job: str,
        consistency_text: str,
        num_workers: int,
        worker: int,
        incarnation: int,
        clocks: Mapping[int, int],
        reader: bool,
        nonfinite: NonFinite = NonFinite.ERROR,
    ) -> None:
        """A worker may connect; unless it only reads, it is a member from its clocks on."""
        with self._lock:
            if worker >= FIRST_READER:
                self._job(job)  # it comes to one that is there, or not at all
            entry = self._jobs.setdefault(
                job,
                ShardJob(
                    name=job,
                    consistency=consistency.parse(consistency_text),
                    num_workers=num_workers,
                    nonfinite=nonfinite,
                ),
            )
            entry.known[worker] = incarnation
            for key in [key for key in entry.tokens if key[0] == worker]:
                del entry.tokens[key]
            if not reader:
                entry.members[worker] = (incarnation, dict(clocks))
            tables = list(entry.tables.values())
        if not reader:
            for table in tables:
                table.join(worker, incarnation, clocks.get(table.spec.number, 0))

    def remove(self, *, job: str, worker: int, incarnation: int) -> dict[int, int]:
        """A worker stops being a member, or a reader goes; returns the newest clock by table."""
        with self._lock:
            entry = self._job(job)
            if entry.members.get(worker, (None,))[0] == incarnation:
                del entry.members[worker]
            session = None
            if worker >= FIRST_READER:
                entry.known.pop(worker, None)
                entry.tokens.pop((worker, incarnation), None)
                session = entry.sessions.pop(worker, None)
            tables = list(entry.tables.values())
        if session is not None:
            session.retire()
        return {table.spec.number: table.leave(worker, incarnation) for table in tables}

    def open_table(self, job: str, spec: TableSpec, opening: int = 0) -> None:
        """Allocates a table for a job that has members; `opening` is the number of the order.

        Raises:
            OptimizerUnsupported: the shards cannot run its optimizer.
            ConfigurationRefused: it clips the mean gradient, and the job has none.
            MemoryLimitExceeded: it does not fit; nothing was allocated.
        """
        optimizers.check(spec.optimizer)
        with self._lock:
            entry = self._job(job)
            _check_clips(spec, entry.consistency)
            plan = Plan(spec, self.num_shards)
            before = entry.tables.get(spec.number)  # an earlier try that not all shards could carry out
            if before is not None:
                assert not before.started, (job, spec.number)
                entry.memory_bytes -= self._needed_bytes(before.spec, before.plan, entry.num_workers)
                del entry.tables[spec.number]
            need = self._needed_bytes(spec, plan, entry.num_workers)
            used = sum(other.memory_bytes for other in self._jobs.values())
            limit = self.memory_limit_bytes
            if limit is not None and used + need > limit:
                holders = ", ".join(f"{other.name} {other.memory_bytes}" for other in self._jobs.values())
                raise MemoryLimitExceeded(
                    f"table {spec.number} of job {job} needs {need} bytes on shard {self.index} (weights, "
                    f"optimizer state and one slice for each of {entry.num_workers} workers); "
                    f"{limit - used} of --memory-limit {limit} are free (jobs hold, in bytes: {holders})",
                    needed=need,
                    free=limit - used,
                    limit=limit,
                )
            entry.memory_bytes += need
            members = dict(entry.members)
        table = ShardTable(
            job=job,
            spec=spec,
            plan=plan,
            shard=self.index,
            gate=gate_of(entry.consistency),
            nonfinite=entry.nonfinite,
            opening=opening,
            report=self._report,
            submit=self._submit,
        )
        for worker, (incarnation, clocks) in members.items():
            table.join(worker, incarnation, clocks.get(spec.number, 0))
        with self._lock:
            entry.tables[spec.number] = table
        logger.info("job %s: table %d opened, %d bytes", job, spec.number, need)

    def start_table(self, job: str, number: int) -> None:
        """Members may push and pull; the weights are no longer loaded."""
        self.table(job, number).started = True

    def drop(self, job: str) -> None:
        """Forgets a job and frees its memory."""
        with self._lock:
            self._jobs.pop(job, None)

    def decide(self, job: str, number: int, *, opening: int, step: int, scale: float) -> None:
        """A clipped step closes with this scale; one of a table that is gone is not news."""
        with self._lock:
            entry = self._jobs.get(job)
            table = entry.tables.get(number) if entry is not None else None
        if table is not None and table.opening == opening:
            table.decide(step, scale)

    def undecided(self) -> list[Norm]:
        """Norms whose steps wait for their scale, of all jobs."""
        with self._lock:
            tables = [table for entry in self._jobs.values() for table in entry.tables.values()]
        return [norm for table in tables if (norm := table.undecided()) is not None]

    def _report(self, norm: Norm) -> None:
        self.on_norm(norm)  # whoever it is by now

    # -- connections -----------------------------------------------------------------------------------

    def make_token(self, job: str, worker: int, incarnation: int) -> bytes:
        """A token good for one connection of this worker.

        Raises:
            JobUnknown: the job is not on this shard.
            StrangerRefused: the worker has not joined, or another incarnation of it has.
        """
        with self._lock:
            entry = self._job(job)
            self._check_known(entry, worker, incarnation)
            token = secrets.token_bytes(TOKEN_BYTES)
            kept = entry.tokens.setdefault((worker, incarnation), [])
            kept.append(token)
            del kept[:-MAX_TOKENS]
            return token

    def use_token(self, job: str, worker: int, incarnation: int, token: bytes) -> None:
        """Takes a token back; it is good once.

        Raises:
            JobUnknown, StrangerRefused: as for `make_token`, or the token is not one of this worker's.
        """
        with self._lock:
            entry = self._job(job)
            self._check_known(entry, worker, incarnation)
            kept = entry.tokens.get((worker, incarnation), [])
            for place, known in enumerate(kept):
                if hmac.compare_digest(known, token):
                    del kept[place]
                    return
        raise StrangerRefused(f"worker {worker} of job {job}: this token was not given to it, or is used up")

    def is_member(self, job: str, worker: int, incarnation: int) -> bool:
        """Whether this worker's pulls go through the gate."""
        with self._lock:
            entry = self._jobs.get(job)
            return entry is not None and entry.members.get(worker, (None,))[0] == incarnation

    def table_of(self, job: str, number: int, worker: int, incarnation: int, *, writes: bool) -> ShardTable:
        """A table of a job, for one of its workers.

        Raises:
            JobUnknown: the job, or this table of it, is not on this shard.
            StrangerRefused: the worker has not joined, or another incarnation of it has; or it writes and is
                no member (any more).
        """
        with self._lock:
            entry = self._job(job)
            self._check_known(entry, worker, incarnation)
            if writes and entry.members.get(worker, (None,))[0] != incarnation:
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
        with self._lock:
            table = self._job(job).tables.get(number)
        if table is None:
            raise JobUnknown(f"job {job} has no table {number} on shard {self.index}", job=job, table=number)
        return table

    def replace_session(self, job: str, worker: int, session: Retirable) -> Retirable | None:
        """Makes `session` the live one of this worker; returns the one before, which is to be retired."""
        with self._lock:
            sessions = self._job(job).sessions
            before, sessions[worker] = sessions.get(worker), session
            return before

    def forget(self, job: str, worker: int, session: Retirable, outlet: Outlet) -> None:
        """A connection of this job is gone."""
        with self._lock:
            entry = self._jobs.get(job)
            if entry is not None and entry.sessions.get(worker) is session:
                del entry.sessions[worker]
            tables = list(entry.tables.values()) if entry is not None else []
        for table in tables:
            table.forget(outlet)

    def count_refused(self) -> None:
        """A frame was malformed, unknown, or from a stranger."""
        with self._lock:
            self.refused_frames += 1

    def jobs(self) -> tuple[ShardJob, ...]:
        """All jobs, to be read for figures only."""
        with self._lock:
            return tuple(self._jobs.values())

    # -- inside ----------------------------------------------------------------------------------------

    def _job(self, name: str) -> ShardJob:
        entry = self._jobs.get(name)
        if entry is None:
            raise JobUnknown(
                f"shard {self.index} does not know job {name!r}: nobody has joined it here, or the server "
                "was started again without its state",
                job=name,
            )
        return entry

    @staticmethod
    def _check_known(entry: ShardJob, worker: int, incarnation: int) -> None:
        if entry.known.get(worker) != incarnation:
            raise StrangerRefused(
                f"worker {worker} with incarnation {incarnation} has not joined job {entry.name}",
                worker=worker,
                incarnation=incarnation,
            )

    def _needed_bytes(self, spec: TableSpec, plan: Plan, num_workers: int) -> int:
        total = 0
        for bucket in plan.buckets:
            start, end = bucket.slice_bounds(self.index)
            slots = optimizers.state_slots(spec.optimizer, bucket.group)
            total += (end - start) * bucket.item_bytes * (1 + slots + num_workers)
        return total


def _check_clips(spec: TableSpec, model: consistency.Consistency) -> None:
    if spec.clip_grad_norm is not None and not isinstance(model, consistency.BSP):
        raise ConfigurationRefused(
            f"table {spec.number}: clip_grad_norm scales the mean gradient of a step, which {model} does not "
            "form: clip on each worker, or use bsp"
        )


def _lose(_norm: Norm) -> None:
    """Nobody coordinates yet: who begins to asks for what is undecided."""
