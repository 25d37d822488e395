"""The starts of a job's tables: what each waits for, whose weights it begins with, who is told so. Pure.

    made      a worker makes its next table; the first who does has the shards open it
    opened    all shards hold it; one who is asked uploads its weights
    uploaded  they are loaded; it waits until nobody is missing
    started   members push and pull

Who comes when it has started enters it in two rounds, at a step that all shards name. It must not know what
becomes of the job where nobody is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ps_server.coordinator.jobs.actions import Action, ToMember, ToShards, entrance, named, tell
from ps_server.coordinator.jobs.first_steps import FirstSteps
from ps_server.coordinator.jobs.member import Member, MemberState
from ps_server.coordinator.jobs.phase import JobState, Phase
from ps_server.coordinator.jobs.roster import Roster
from ps_server.coordinator.jobs.saved_job import SavedJob
from ps_server.coordinator.jobs.tables import JobTables
from ps_wire.errors import ConfigurationRefused
from ps_wire.frames.messages import table_to_proto
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2


class TableStarts:
    """All that the tables of one job wait for. Not thread-safe.

    Attributes:
        tables: that its workers have made so far.
        first_steps: at which workers begin them.
    """

    def __init__(self, job: str, *, num_workers: int, min_workers: int, roster: Roster, phase: Phase) -> None:
        """Has no table yet; looks at `roster` for who is here, and has `phase` run when a table starts."""
        self.tables = JobTables(job)
        self.first_steps = FirstSteps()
        self._job = job
        self._num_workers = num_workers
        self._min_workers = min_workers
        self._roster = roster
        self._phase = phase

    def made(self, member: Member, spec: TableSpec, message: spec_pb2.Table | None = None) -> list[Action]:
        """A worker makes its next table; `message` is what it came as, which is made again otherwise.

        Raises:
            ConfigurationRefused: not its next one, or one too many.
            TableMismatch: the table differs from the one that another worker has made.
        """
        number, ended = spec.number, self._phase.state is JobState.ENDED
        self.tables.check(member, spec, fixed=ended)
        member.make_table()
        if number == len(self.tables):
            self.tables.add(spec)
            order = pb.OpenTable(job=self._job, table=message or table_to_proto(spec))
            return [ToShards(pb.Order(open_table=order)), *self.tell_waiting()]
        if ended:
            return [self._tell_made(member, number), self._tell_started(member, number)]
        if not self.tables.records[number].opened:
            return self.tell_waiting()
        return self._has(member, number)

    def opened(self, number: int) -> list[Action]:
        """All shards hold a table."""
        if number >= len(self.tables):  # the job's state was given up meanwhile
            return []
        self.tables.records[number].open()
        makers = self._makers(number)
        return [action for member in makers for action in self._has(member, number)] or self._advance(number)

    def entered(self, order: pb.EnterTable) -> list[Action]:
        """A worker that came late is in the gates of a table, from a step on."""
        member, number = self._roster.members[order.worker], order.table
        if member.incarnation != order.incarnation or not member.present or number >= len(self.tables):
            return []
        made = self._tell_made(member, number)
        if not self.tables.records[number].started:
            return [made, *self._advance(number)]
        return [made, self._tell_started(member, number, order.step)]

    def uploaded(self, member: Member, number: int) -> list[Action]:
        """The starter's weights of a table are on all shards.

        Raises:
            ConfigurationRefused: this worker was not asked for them.
        """
        if number >= len(self.tables) or not self._uploads(member, number):
            raise ConfigurationRefused(f"worker {member.worker} was not asked for table {number}'s weights")
        self.tables.records[number].upload()
        return self._advance(number)

    def started(self, number: int) -> list[Action]:
        """All shards let members push and pull."""
        if number >= len(self.tables):
            return []
        table = self.tables.records[number]
        if table.started:  # nobody came back to a job that was restored
            return []
        table.start()
        self._phase.enter(JobState.RUNNING)
        if all(record.started for record in self.tables.records):
            self._phase.train()
        return [
            self._tell_started(member, number, self.first_steps.of(member.worker, number))
            for member in self._makers(number)
        ]

    def go_on_without(self) -> list[Action]:
        """Those who wait for a table to start may have waited for one who went."""
        number = self.tables.waiting()
        if number is None or not self.tables.records[number].opened:
            return self.tell_waiting()
        record = self.tables.records[number]
        asked: list[Action] = []
        if not record.loaded and record.asked is not None and not record.asked.present:
            heirs = [member for member in self._makers(number) if self._uploads(member, number)]
            asked = [self._tell_made(member, number) for member in heirs]
        return [*asked, *self._advance(number)]

    def tell_waiting(self) -> list[Action]:
        """Tells those who have made a table that has not started what it waits for."""
        number = self.tables.waiting()
        if number is None:
            return []
        missing = named(self._missing())
        if not missing and self.tables.records[number].loaded:
            return []
        blocked = self._makers(number)
        uploader = [member for member in blocked if self._uploads(member, number)]
        whom = missing or "the weights of " + ", ".join(f"worker {member.worker}" for member in uploader)
        waiting = pb.Waiting(whom=whom)
        return [tell(member, waiting=waiting) for member in blocked if missing or member not in uploader]

    # -- the job as a whole ----------------------------------------------------------------------------

    def restore(self, saved: SavedJob) -> None:
        """All shards hold the tables of a snapshot."""
        self.tables.restore(saved.tables, started=saved.ended)
        self.first_steps.restore(saved.clocks)

    def without_anybody(self) -> list[Action]:
        """Nobody has come back to a job that was restored: whoever comes later goes on with it."""
        if not self._phase.restored:
            return []
        self._phase.train()
        orders: list[Action] = []
        for number, record in enumerate(self.tables.records):
            record.start()
            orders.append(ToShards(pb.Order(start_table=pb.StartTable(job=self._job, table=number))))
        return orders

    def clear(self) -> None:
        """The job's state is given up."""
        self.tables.clear()
        self.first_steps.clear()

    def load(self, tables: Iterable[Mapping[str, Any]], steps: Mapping[str, Any]) -> None:
        """Goes on with what `tables` and `first_steps` have dumped; the roster is there by now."""
        self.tables.load(tables, self._roster.members)
        self.first_steps.load(steps)

    # -- inside ----------------------------------------------------------------------------------------

    def _makers(self, number: int) -> list[Member]:
        return [member for member in self._roster.here() if member.num_tables > number]

    def _has(self, member: Member, number: int) -> list[Action]:
        """A worker has made a table that is open."""
        if member.late:
            return [entrance(self._job, member, number)]
        return [self._tell_made(member, number), *self._advance(number)]

    def _uploads(self, member: Member, number: int) -> bool:
        """Whether this worker's weights start the table.

        Worker 0's; the first to arrive where any may start the job; in mid-run the lowest worker's.
        """
        record, here = self.tables.records[number], self._roster.here()
        if record.loaded or member.reader:
            return False
        if record.asked in here:
            return member is record.asked
        if self._phase.state is JobState.RUNNING:
            return member.worker == min((other.worker for other in here), default=0)
        return member.worker == (here[0].worker if self._min_workers and here else 0)

    def _advance(self, number: int) -> list[Action]:
        """Starts a table once nothing is missing; else tells those who wait what is."""
        table = self.tables.records[number]
        if table.started or table.starting:
            return []
        if not table.loaded or self._missing():
            return self.tell_waiting()
        table.begin_start()
        order = pb.StartTable(job=self._job, table=number)
        return [ToShards(pb.Order(start_table=order))]

    def _missing(self) -> list[str]:
        waits = self._phase.state is not JobState.RUNNING
        members = self._roster.members.values()
        if self._phase.restored:  # those who trained are returning, or were given up
            coming = (MemberState.JOINING, MemberState.RETURNING)
            back = [f"{it.holder} to come back" for it in members if it.state in coming]
            return back + self.tables.missing(self._roster, range(0))
        needed = range(self._num_workers if waits and not self._min_workers else 0)
        if self._min_workers and waits:  # who is joining now starts with them: it is in the gates
            joins = [it for it in members if it.state is MemberState.JOINING]
            if any(not it.late for it in joins):
                return [f"{it.holder} to join" for it in joins]
        return self.tables.missing(self._roster, needed, self._min_workers if waits else 0)

    # -- inside: what members are told -----------------------------------------------------------------

    def _tell_made(self, member: Member, number: int) -> ToMember:
        upload = self._uploads(member, number)
        if upload:
            self.tables.records[number].ask(member)
        stages = self.tables.records[number].spec.stages
        return tell(member, table_made=pb.TableMade(table=number, upload=upload, stages=stages))

    @staticmethod
    def _tell_started(member: Member, number: int, step: int = 0) -> ToMember:
        return tell(member, table_started=pb.TableStarted(table=number, step=step))
