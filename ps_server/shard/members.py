"""Members of the jobs on a shard, let in and taken out as the coordinator orders it.

An incarnation that was fenced may do nothing any more, here or over a connection that it opens later; the
verdict, which all shards get after all have fenced it, says which of its pushes count. It must not know
frames.
"""

from __future__ import annotations

from collections.abc import Mapping

from ps_server.events import Event
from ps_server.shard.job import ShardJob
from ps_server.shard.jobs import ShardJobs
from ps_wire.frames.frame import FIRST_READER
from ps_wire.spec import consistency
from ps_wire.spec.nonfinite import NonFinite


class ShardMembers:
    """The changes of membership on a shard: admit, fence, remove. Thread-safe."""

    def __init__(self, jobs: ShardJobs) -> None:
        self._jobs = jobs

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
        with self._jobs.lock:
            if worker >= FIRST_READER:
                self._jobs.known(job)  # it comes to one that is there, or not at all
            entry = self._jobs.by_name.setdefault(
                job,
                ShardJob(
                    name=job,
                    consistency=consistency.parse(consistency_text),
                    num_workers=num_workers,
                    nonfinite=nonfinite,
                ),
            )
            entry.admit(worker, incarnation, None if reader else clocks)
            tables = list(entry.tables.values())
        if not reader:
            for table in tables:
                table.join(worker, incarnation, clocks.get(table.spec.number, 0))

    def remove(self, *, job: str, worker: int, incarnation: int) -> dict[int, int]:
        """A worker stops being a member, or a reader goes; returns the newest clock by table."""
        with self._jobs.lock:
            entry = self._jobs.by_name.get(job)
            if entry is None:  # it was dropped meanwhile, or its first member was not let in here
                return {}
            entry.leave(worker, incarnation)
            sessions = entry.dismiss(worker, incarnation) if worker >= FIRST_READER else ()
            tables = list(entry.tables.values())
        for session in sessions:
            session.retire()
        return {table.spec.number: table.leave(worker, incarnation) for table in tables}

    def fence(self, *, job: str, worker: int, incarnation: int) -> dict[int, int]:
        """Nothing more is taken of this incarnation, on any connection.

        Returns:
            Its smallest clock over partitions, by table that it is a member of.
        """
        with self._jobs.lock:
            entry = self._jobs.by_name.get(job)
            if entry is None:  # it was dropped meanwhile: there is nothing to keep anybody from
                return {}
            sessions = entry.fence(worker, incarnation)
            tables = list(entry.tables.values())
        for session in sessions:
            session.retire()
        clocks = {table.spec.number: table.fence(worker, incarnation) for table in tables}
        return {number: clock for number, clock in clocks.items() if clock is not None}

    def evict(
        self, *, job: str, worker: int, incarnation: int, limits: Mapping[int, int], membership_epoch: int
    ) -> dict[int, int]:
        """The verdict on a fenced incarnation: its pushes below `limits`, by table, count.

        Returns:
            The newest clock by table.
        """
        with self._jobs.lock:
            entry = self._jobs.by_name.get(job)
            if entry is None:  # it was dropped meanwhile: there is nothing to keep anybody from
                return {}
            tables = list(entry.tables.values())
        dropped = -sum(table.ledger(worker).dropped for table in tables)
        newest = {
            table.spec.number: table.evict(worker, incarnation, limits[table.spec.number], membership_epoch)
            for table in tables
            if table.spec.number in limits
        }
        dropped += sum(table.ledger(worker).dropped for table in tables)
        with self._jobs.lock:
            if dropped:
                entry.say(Event.DROP, worker=worker, incarnation=incarnation, pushes=dropped)
            sessions = entry.sessions.judge(worker)
        for session in sessions:
            session.sever()  # it hears why when it connects again
        return newest

    def enter(self, *, job: str, table: int, worker: int, incarnation: int, step: int) -> None:
        """A worker that was prepared becomes a member of a table; `step` is its first."""
        with self._jobs.lock:
            entry = self._jobs.known(job)
            entry.enter(worker, incarnation, table, step)
            entered = entry.tables[table]
        entered.join(worker, incarnation, step)
