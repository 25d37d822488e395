"""The life of a job, as the coordinator sees it: who belongs to it, which tables it has, when it ends.

    waiting    until as many workers as it needs have joined and made their tables, and the starter's weights
               are loaded
    running    members push and pull; others come and go
    suspended  no live member is left and none has finished: the servers keep the state; who joins goes on
    ended      no live member is left and at least one has finished: who joins now may read

Inputs are what workers say and what became of orders; each returns actions in order. Orders go to all shards,
one after the other; their outcome comes back as `done` or `failed`. It must not know streams or queues. What
becomes of those who stop is `job_life`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ps_server.agreement.refusals import rolled_back
from ps_server.coordinator.jobs.job_life import JobLife
from ps_server.coordinator.jobs.member import (
    Action,
    JobState,
    Member,
    MemberState,
    TableRecord,
    ToMember,
    ToShards,
    check_job,
    entrance,
    named,
    refusal,
    removal,
    tell,
)
from ps_server.coordinator.jobs.saved_job import SavedJob
from ps_wire.errors import ConfigurationRefused, JobMismatch, PsError, ServerNotReady
from ps_wire.frames.messages import table_to_proto
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2


@dataclass(slots=True)
class Job(JobLife):
    """See the module's docstring. Not thread-safe."""

    # -- inputs from workers ---------------------------------------------------------------------------

    def join(
        self,
        wanted: spec_pb2.Job,
        *,
        worker: int | None,
        host: str,
        pid: int,
        lease_s: float = 0.0,
        before: int = 0,
    ) -> tuple[Member, list[Action]]:
        """A worker wants to belong; `worker` is None where the number is to be given to it.

        `before` is the incarnation that it had, 0 where it is new.

        Raises:
            JobMismatch: it wants another consistency, number of workers or `nonfinite`.
            WorkerNumberTaken: the number is held; its holder is named.
            JobFull: there is no free number.
        """
        try:
            check_job(self.spec, wanted)
        except JobMismatch as error:
            raise self._spent(error) from None
        number = self.roster.number(worker, before)
        if self._broken is not None and self.roster.present():  # those who are here were told to go
            raise self._broken
        self._broken = None
        ended = self.state is JobState.ENDED
        late = self._tables.begun and not ended  # who is not, begins with the others
        if late and self._has_state and not self._restored:
            self.state = JobState.RUNNING
        member = self.roster.add(number, host=host, pid=pid, reader=ended, late=late, lease_s=lease_s)
        self._awaited.discard(number)
        order = pb.AdmitMember(
            job=self.spec,
            worker=member.worker,
            incarnation=member.incarnation,
            clocks={table: self._first_step(number, table) for table in range(len(self._tables))},
            reader=ended or late,
        )
        return member, [ToShards(pb.Order(admit=order))]

    def make_table(
        self, member: Member, spec: TableSpec, message: spec_pb2.Table | None = None
    ) -> list[Action]:
        """A worker makes its next table; `message` is what it came as, which is made again otherwise.

        Raises:
            ConfigurationRefused: not its next one, or one too many.
            TableMismatch: the table differs from the one that another worker has made.
        """
        number = spec.number
        try:
            self._tables.check(member, spec, fixed=self.state is JobState.ENDED)
        except ConfigurationRefused as error:
            raise self._spent(error) from None
        member.num_tables += 1
        if number == len(self._tables):
            self._tables.records.append(TableRecord(spec))
            order = pb.OpenTable(job=self.name, table=message or table_to_proto(spec))
            return [ToShards(pb.Order(open_table=order)), *self._tell_waiting()]
        if self.state is JobState.ENDED:
            return [self._table_made(member, number), self._table_started(member, number)]
        if not self._tables.records[number].opened:
            return self._tell_waiting()
        return self._made(member, number)

    def _spent(self, error: ConfigurationRefused) -> ConfigurationRefused:
        """The same; where the job has ended, with the way out: its name is spent by one run."""
        if self.state is not JobState.ENDED:
            return error
        return type(error)(
            f"{error.message}; job {self.name} has ended: to train again, take another --job, or drop this "
            f"one: ps-lab job drop {self.name}",
            **error.facts,
        )

    def uploaded(self, member: Member, number: int) -> list[Action]:
        """The starter's weights of a table are on all shards."""
        if number >= len(self._tables) or not self._uploads(member, number):
            raise ConfigurationRefused(f"worker {member.worker} was not asked for table {number}'s weights")
        self._tables.records[number].loaded = True
        return self._advance(number)

    # -- outcomes of orders ----------------------------------------------------------------------------

    def done(self, order: pb.Order, clocks: Mapping[int, int]) -> list[Action]:
        """Every shard has carried the order out; `clocks` are the newest by table (remove, evict)."""
        match order.WhichOneof("kind"):
            case "admit":
                return self._admitted(order.admit)
            case "remove" | "evict" as kind:
                gone = getattr(order, kind)
                if kind == "evict":  # of its pushes, those of the steps before the limits count
                    self.shares.gone(gone.worker, gone.incarnation, max(gone.limits.values(), default=0))
                    self.ends[gone.worker] = dict(gone.limits)
                return self._removed(gone.worker, gone.incarnation, clocks)
            case "enter":
                return self._entered(order.enter)
            case "open_table":
                return self._opened(order.open_table.table.number)
            case "start_table":
                return self._started(order.start_table.table)
        return []

    def failed(self, order: pb.Order, error: PsError, *, sent: bool = True) -> list[Action]:
        """A shard refused the order, or is not there: whom it concerns is told.

        Who was to be let in may have been, on some shards: it is taken out again on all of them, however long
        that takes, before anything else is ordered. An order that was not `sent` needs no undoing.
        """
        kind = order.WhichOneof("kind")
        if kind == "admit":
            member = self.roster.members[order.admit.worker]
            if member.incarnation == order.admit.incarnation and member.present:
                member.state = MemberState.LOST
                undone = [removal(self.name, member)] if sent else self._check_end()
                return [refusal(member, error), *undone]
            return []
        told = self.tell_all(error)
        if kind not in ("remove", "fence", "evict"):
            return told
        gone = getattr(order, kind)
        member = self.roster.members[gone.worker]
        if member.incarnation == gone.incarnation:
            member.state = MemberState.LOST
        return told + self._check_end()

    # -- servers that lost what they held --------------------------------------------------------------

    def roll_back(self, saved: SavedJob, *, floor: int) -> list[Action]:
        """All shards hold the snapshot's part of the job by now: it goes on from there.

        Who trains, or has finished and not gone, is told to come back, and waited for as long as its lease is
        renewed. A coordinator that knows nobody waits for those who trained at the cut.

        Args:
            saved: the snapshot.
            floor: incarnations up to this one are over.
        """
        self.epoch += 1
        self.state = JobState.ENDED if saved.ended else JobState.WAITING
        self._restored = not saved.ended
        self.has_final_state = saved.ended and "final" in saved.states
        self._any_finished = saved.ended
        self._uploaders.clear()
        self._broken = None
        self._tables.records[:] = [
            TableRecord(spec, opened=True, loaded=True, started=saved.ended) for spec in saved.tables
        ]
        self.clocks = {table: max(clocks.values(), default=0) for table, clocks in saved.clocks.items()}
        self._first_steps = {
            (table, worker): clock
            for table, clocks in saved.clocks.items()
            for worker, clock in clocks.items()
        }
        self.shares.restore(saved.shares)
        self.collectives.roll_back()
        self.forget_loops()
        known = bool(self.roster.members)
        self.roster.floor = floor
        actions: list[Action] = []
        for member in self.roster.present():
            if member.state is MemberState.JOINING or member.reader:
                member.state = MemberState.LOST
                error = ServerNotReady(f"job {self.name} is going back to a snapshot: join again")
                actions.append(refusal(member, error))
                if member.worker in saved.workers and not member.reader and not saved.ended:
                    self._await(member.worker, member.lease_s)  # it does not know yet as whom it had joined
            else:
                member.state, member.num_tables = MemberState.RETURNING, 0
                actions.append(self.go_back(member))
        for worker in sorted(saved.workers) if not known and not saved.ended else ():
            self._await(worker, saved.workers[worker])
        return actions + self._check_end()

    def _await(self, worker: int, lease_s: float) -> None:
        """Whoever comes with this number is waited for."""
        self.roster.add(worker, host="", pid=0, reader=False, lease_s=lease_s)
        self.roster.members[worker].state = MemberState.RETURNING

    def go_back(self, member: Member) -> ToMember:
        """What one who is returning is told."""
        error = rolled_back(self.name, max(self.clocks.values(), default=0))
        return tell(member, rolled_back=pb.RolledBack(step=error.step, why=error.message))

    # -- inside: joining and starting ------------------------------------------------------------------

    def _admitted(self, order: pb.AdmitMember) -> list[Action]:
        member = self.roster.members[order.worker]
        if member.incarnation != order.incarnation or member.state is not MemberState.JOINING:
            return []
        member.state = MemberState.JOINED
        self.epoch += 1
        joined = pb.Joined(
            worker=member.worker,
            incarnation=member.incarnation,
            ended=member.reader,
            resumed=member.late,
            rolled_back=self._restored,
            num_tables=len(self._tables),
        )
        return [tell(member, joined=joined), *self._tell_waiting()]

    def _opened(self, number: int) -> list[Action]:
        if number >= len(self._tables):  # the job's state was given up meanwhile
            return []
        self._tables.records[number].opened = True
        makers = [member for member in self.roster.here() if member.num_tables > number]
        return [action for member in makers for action in self._made(member, number)] or self._advance(number)

    def _made(self, member: Member, number: int) -> list[Action]:
        """A worker has made a table that is open."""
        if member.late:
            return [entrance(self.name, member, number)]
        return [self._table_made(member, number), *self._advance(number)]

    def _entered(self, order: pb.EnterTable) -> list[Action]:
        """A worker that came late is in the gates of a table, from a step on."""
        member, number = self.roster.members[order.worker], order.table
        if member.incarnation != order.incarnation or not member.present or number >= len(self._tables):
            return []
        made = self._table_made(member, number)
        if not self._tables.records[number].started:
            return [made, *self._advance(number)]
        return [made, self._table_started(member, number, order.step)]

    def _uploads(self, member: Member, number: int) -> bool:
        """Whether this worker's weights start the table.

        Worker 0's; the first to arrive where any may start the job; in mid-run the lowest worker's.
        """
        record, here = self._tables.records[number], self.roster.here()
        if record.loaded or member.reader:
            return False
        if record.asked in here:
            return member is record.asked
        if self.state is JobState.RUNNING:
            return member.worker == min((other.worker for other in here), default=0)
        return member.worker == (here[0].worker if self.min_workers and here else 0)

    def _table_made(self, member: Member, number: int) -> ToMember:
        upload = self._uploads(member, number)
        if upload:
            self._tables.records[number].asked = member
        return tell(member, table_made=pb.TableMade(table=number, upload=upload))

    def _advance(self, number: int) -> list[Action]:
        """Starts a table once nothing is missing; else tells those who wait what is."""
        table = self._tables.records[number]
        if table.started or table.starting:
            return []
        if not table.loaded or self._missing():
            return self._tell_waiting()
        table.starting = True
        order = pb.StartTable(job=self.name, table=number)
        return [ToShards(pb.Order(start_table=order))]

    def _go_on_without(self) -> list[Action]:
        number = self._tables.waiting()
        if number is None or not self._tables.records[number].opened:
            return self._tell_waiting()
        record = self._tables.records[number]
        asked: list[Action] = []
        if not record.loaded and record.asked is not None and not record.asked.present:
            heirs = [
                member
                for member in self.roster.here()
                if member.num_tables > number and self._uploads(member, number)
            ]
            asked = [self._table_made(member, number) for member in heirs]
        return [*asked, *self._advance(number)]

    def _missing(self) -> list[str]:
        waits = self.state is not JobState.RUNNING
        if self._restored:  # those who trained are returning, or were given up
            coming = (MemberState.JOINING, MemberState.RETURNING)
            back = [f"{it.holder} to come back" for it in self.roster.members.values() if it.state in coming]
            return back + self._tables.missing(self.roster, range(0))
        needed = range(self.num_workers if waits and not self.min_workers else 0)
        if self.min_workers and waits:  # who is about to be one of those who start has a place in their gates
            joins = [it for it in self.roster.members.values() if it.state is MemberState.JOINING]
            if any(not it.late for it in joins):
                return [f"{it.holder} to join" for it in joins]
        return self._tables.missing(self.roster, needed, self.min_workers if waits else 0)

    def _tell_waiting(self) -> list[Action]:
        """Tells those who have made a table that has not started what it waits for."""
        number = self._tables.waiting()
        if number is None:
            return []
        missing = named(self._missing())
        if not missing and self._tables.records[number].loaded:
            return []
        blocked = [member for member in self.roster.here() if member.num_tables > number]
        uploader = [member for member in blocked if self._uploads(member, number)]
        whom = missing or "the weights of " + ", ".join(f"worker {member.worker}" for member in uploader)
        waiting = pb.Waiting(whom=whom)
        return [tell(member, waiting=waiting) for member in blocked if missing or member not in uploader]

    def _started(self, number: int) -> list[Action]:
        if number >= len(self._tables):
            return []
        table = self._tables.records[number]
        if table.started:  # nobody came back to a job that was restored
            return []
        table.starting, table.started = False, True
        self.state = JobState.RUNNING
        if all(record.started for record in self._tables.records):
            self._restored = False
        makers = [member for member in self.roster.here() if member.num_tables > number]
        return [
            self._table_started(member, number, self._first_step(member.worker, number)) for member in makers
        ]

    def _first_step(self, worker: int, table: int) -> int:
        """Of a worker that begins when a table does."""
        return self._first_steps.get((table, worker), self.clocks.get(table, 0))

    def _table_started(self, member: Member, number: int, step: int = 0) -> ToMember:
        return tell(member, table_started=pb.TableStarted(table=number, step=step))
