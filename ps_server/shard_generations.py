"""Times of a shard: generations, the jobs that a new one voids, and what comes back from a snapshot.

A base of `Shard`. It must not know frames, nor how a snapshot lies in its files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ps_server import table_state
from ps_server.log import logger
from ps_server.shard_job import ShardJob
from ps_server.shard_members import ShardMembers
from ps_server.shard_table import ShardTable
from ps_server.table_state import TableState
from ps_wire import consistency
from ps_wire.errors import ServerNotReady
from ps_wire.nonfinite import parse as parse_nonfinite
from ps_wire.plan import Plan
from ps_wire.table import TableSpec
from ps_wire.v1 import spec_pb2

ReadPart: TypeAlias = Callable[[str, str, Plan, TableSpec], TableState]


class ShardGenerations(ShardMembers):
    """See the module's docstring. Thread-safe."""

    index: int
    generation: int
    read_part: ReadPart
    _jobs: dict[str, ShardJob]
    _lock: threading.Lock

    def jobs(self) -> tuple[ShardJob, ...]:
        """All jobs."""
        raise NotImplementedError

    def open_table(self, job: str, spec: TableSpec, opening: int = 0) -> None:
        """See `Shard.open_table`."""
        raise NotImplementedError

    def table(self, job: str, number: int) -> ShardTable:
        """See `Shard.table`."""
        raise NotImplementedError

    def restore(
        self,
        *,
        job: spec_pb2.Job,
        tables: Sequence[TableSpec],
        snapshot: str,
        generation: int,
        incarnation: int,
        step: int,
        opening: int = 0,
    ) -> None:
        """Puts this shard's part of a snapshot in place of what there is of a job; nobody is in it yet.

        Args:
            job: what it is.
            tables: by number; they have not started.
            snapshot: its name.
            generation: of the shard from now on.
            incarnation: workers' incarnations up to this one are over; they are told so.
            step: of the snapshot.
            opening: number of the order.

        Raises:
            PsError: it cannot be read, is not of these tables or does not fit: the job has none then.
        """
        with self._lock:
            before = self._jobs.pop(job.name, None)
        for session in before.connections() if before is not None else ():
            session.retire()
            session.cut()  # it hears why when it connects again
        self.generation = generation
        with self._lock:
            self._jobs[job.name] = ShardJob(
                name=job.name,
                consistency=consistency.parse(job.consistency),
                num_workers=job.num_workers,
                nonfinite=parse_nonfinite(job.nonfinite or "error"),
                floor=incarnation,
                floor_step=step,
            )
        for spec in tables:
            self.open_table(job.name, spec, opening)
            table = self.table(job.name, spec.number)
            table_state.restore(table, self.read_part(job.name, snapshot, table.plan, spec))
        logger.info("job %s: restored from %s", job.name, snapshot)

    def begin(self, generation: int, *, keep: bool) -> None:
        """From now on the shard is of this generation; `keep`: it was before, and what it holds counts."""
        self.generation = generation
        for entry in () if keep else self.jobs():
            logger.warning("job %s: dropped: the service has gone on without this shard's part", entry.name)
            self.end(entry.name)

    def end(self, job: str) -> None:
        """Forgets a job; who is still in it hears why from the coordinator."""
        with self._lock:
            entry = self._jobs.pop(job, None)
        for session in entry.connections() if entry is not None else ():
            session.retire()

    def retire(self) -> None:
        """Nothing more is taken of any worker; what was taken is finished."""
        for entry in self.jobs():
            for session in entry.connections():
                session.retire()

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
