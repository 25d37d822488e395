"""The life of a job, as the coordinator sees it: who belongs to it, which tables it has, when it ends.

    waiting    until all workers have joined and made their tables, and the starter's weights are loaded
    running    members push and pull
    suspended  no live member is left and none has finished: the servers keep the state, and the job waits
               for its workers again
    ended      no live member is left and at least one has finished: who joins now may read

Inputs are what workers say and what became of orders; each returns actions in order. Orders go to all shards,
one after the other; their outcome comes back as `done` or `failed`. It must not know streams or queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ps_server.job_tables import JobTables
from ps_server.member import (
    Action,
    JobState,
    Member,
    MemberState,
    TableRecord,
    ToMember,
    ToShards,
    check_job,
    notices,
    refusal,
    removal,
    tell,
)
from ps_server.roster import Roster
from ps_wire.errors import ConfigurationRefused, JobFull, PsError, WorkerLost
from ps_wire.messages import table_to_proto
from ps_wire.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2


@dataclass(slots=True)
class Job:
    """See the module's docstring. Not thread-safe."""

    name: str
    consistency: str
    num_workers: int
    nonfinite: str = "error"
    state: JobState = JobState.WAITING
    resumed: bool = False
    has_final_state: bool = False
    clocks: dict[int, int] = field(default_factory=dict)
    roster: Roster = field(init=False)
    _tables: JobTables = field(init=False)
    _any_finished: bool = False
    _broken: PsError | None = None

    def __post_init__(self) -> None:
        self.roster = Roster(self.name, self.num_workers)
        self._tables = JobTables(self.name)

    # -- what can be asked -----------------------------------------------------------------------------

    @property
    def spec(self) -> spec_pb2.Job:
        """As a message."""
        job = spec_pb2.Job(name=self.name, consistency=self.consistency, num_workers=self.num_workers)
        job.nonfinite = self.nonfinite
        return job

    @property
    def num_tables(self) -> int:
        """Tables that its workers have made so far."""
        return len(self._tables)

    @property
    def forgotten(self) -> bool:
        """Nobody is here and there is no state to keep."""
        return not self.roster.present() and not self._has_state

    @property
    def _has_state(self) -> bool:
        return self.state in (JobState.RUNNING, JobState.SUSPENDED, JobState.ENDED) or self.resumed

    # -- inputs from workers ---------------------------------------------------------------------------

    def join(
        self, wanted: spec_pb2.Job, *, worker: int | None, host: str, pid: int
    ) -> tuple[Member, list[Action]]:
        """A worker wants to belong; `worker` is None where the number is to be given to it.

        Raises:
            JobMismatch: it wants another consistency, number of workers or `nonfinite`.
            WorkerNumberTaken: the number is held; its holder is named.
            JobFull: there is no free number, or the job has started without this worker.
        """
        check_job(self.spec, wanted)
        number = self.roster.number(worker)
        if self.state is JobState.RUNNING:
            raise JobFull(
                f"job {self.name} runs since all its {self.num_workers} workers had joined; "
                "nobody joins in mid-run"
            )
        if self._broken is not None and self.roster.present():  # those who are here were told to go
            raise self._broken
        self._broken = None
        if self.state is JobState.SUSPENDED:
            self.state, self.resumed = JobState.WAITING, True
        member = self.roster.add(number, host=host, pid=pid, reader=self.state is JobState.ENDED)
        order = pb.AdmitMember(
            job=self.spec,
            worker=member.worker,
            incarnation=member.incarnation,
            clocks=self.clocks,
            reader=member.reader,
        )
        return member, [ToShards(pb.Order(admit=order))]

    def make_table(self, member: Member, spec: TableSpec) -> list[Action]:
        """A worker makes its next table.

        Raises:
            ConfigurationRefused: not its next one, or one too many.
            TableMismatch: the table differs from the one that another worker has made.
        """
        self._tables.check(member, spec, fixed=self.state is JobState.ENDED)
        member.num_tables += 1
        if spec.number == len(self._tables):
            self._tables.records.append(TableRecord(spec))
            order = pb.OpenTable(job=self.name, table=table_to_proto(spec))
            return [ToShards(pb.Order(open_table=order)), *self._tell_waiting()]
        if self.state is JobState.ENDED:
            return [self._table_made(member, spec.number), self._table_started(member, spec.number)]
        if not self._tables.records[spec.number].opened:
            return self._tell_waiting()
        return [self._table_made(member, spec.number), *self._advance(spec.number)]

    def uploaded(self, member: Member, number: int) -> list[Action]:
        """The starter's weights of a table are on all shards."""
        if number >= len(self._tables) or not self._uploads(member, number):
            raise ConfigurationRefused(f"worker {member.worker} was not asked for table {number}'s weights")
        self._tables.records[number].loaded = True
        return self._advance(number)

    def uploaded_final(self, member: Member) -> list[Action]:
        """The last state outside tables is here: the job has ended."""
        if member is not self.roster.first_finished():
            raise ConfigurationRefused(f"worker {member.worker} was not asked for the final state")
        self.has_final_state = True
        return self._end()

    def finish(self, member: Member) -> list[Action]:
        """A worker has no more data: it leaves the gates and waits for the others."""
        if member.reader:
            return [self._ended(member)]
        if member.state is not MemberState.JOINED:
            raise ConfigurationRefused(f"worker {member.worker} is {member.state}, it cannot finish")
        member.state = MemberState.FINISHING
        return [removal(self.name, member)]

    def leave(self, member: Member, reason: str = "") -> list[Action]:
        """A worker goes, in order; with a reason, the others are told."""
        if member.state in (MemberState.JOINING, MemberState.JOINED) and not member.reader:
            member.state = MemberState.LEAVING
            return [*notices(self.roster.present(), member, reason), removal(self.name, member)]
        member.state = MemberState.LEFT
        return [tell(member, left=pb.Left()), *self._check_end()]

    def lost(self, member: Member) -> list[Action]:
        """A worker's stream broke before it had left."""
        if not member.present:
            return []
        trains, goes = member.trains, member.state in (MemberState.LEAVING, MemberState.FINISHING)
        member.state = MemberState.LOST
        if goes:  # its removal is on the way, and what follows from it
            return []
        if not trains:
            return self._check_end()
        starting = any(table.starting for table in self._tables.records)
        if self.state is not JobState.RUNNING and not starting:
            return [removal(self.name, member)]
        error = WorkerLost(
            f"{member.holder} of job {self.name} vanished without leaving; start all workers again",
            worker=member.worker,
            host=member.host,
            pid=member.pid,
        )
        return [removal(self.name, member), *self.tell_all(error)]

    # -- outcomes of orders ----------------------------------------------------------------------------

    def done(self, order: pb.Order, clocks: Mapping[int, int]) -> list[Action]:
        """Every shard has carried the order out; `clocks` are the newest by table (remove)."""
        match order.WhichOneof("kind"):
            case "admit":
                return self._admitted(order.admit)
            case "remove":
                return self._removed(order.remove, clocks)
            case "open_table":
                return self._opened(order.open_table.table.number)
            case "start_table":
                return self._started(order.start_table.table)
        return []

    def failed(self, order: pb.Order, error: PsError) -> list[Action]:
        """A shard refused the order, or is not there: whom it concerns is told."""
        if order.WhichOneof("kind") == "admit":
            member = self.roster.members[order.admit.worker]
            if member.incarnation == order.admit.incarnation and member.present:
                member.state = MemberState.LOST
                return [refusal(member, error), *self._check_end()]
            return []
        told = self.tell_all(error)
        if order.WhichOneof("kind") != "remove":
            return told
        member = self.roster.members[order.remove.worker]
        if member.incarnation == order.remove.incarnation:
            member.state = MemberState.LOST
        return told + self._check_end()

    def tell_all(self, error: PsError) -> list[Action]:
        """Everybody present is told why the job cannot go on; they leave by themselves."""
        self._broken = self._broken or error
        return [refusal(member, error) for member in self.roster.present()]

    def drop(self) -> list[Action]:
        """The job's state is given up: it is as if it had never been."""
        self.state, self.resumed = JobState.WAITING, False
        self._any_finished = self.has_final_state = False
        self._tables.records.clear()
        self.clocks.clear()
        return [ToShards(pb.Order(drop_job=pb.DropJob(job=self.name)))]

    # -- inside: joining and starting ------------------------------------------------------------------

    def _admitted(self, order: pb.AdmitMember) -> list[Action]:
        member = self.roster.members[order.worker]
        if member.incarnation != order.incarnation or member.state is not MemberState.JOINING:
            return []
        member.state = MemberState.JOINED
        joined = pb.Joined(
            worker=member.worker,
            incarnation=member.incarnation,
            ended=member.reader,
            resumed=self.resumed,
        )
        return [tell(member, joined=joined), *self._tell_waiting()]

    def _opened(self, number: int) -> list[Action]:
        if number >= len(self._tables):  # the job's state was given up meanwhile
            return []
        self._tables.records[number].opened = True
        makers = [member for member in self.roster.present() if member.num_tables > number]
        return [self._table_made(member, number) for member in makers] + self._advance(number)

    def _uploads(self, member: Member, number: int) -> bool:
        """Whether this worker's weights start the table: worker 0's, or the lowest's in mid-run."""
        first = min((other.worker for other in self.roster.here()), default=0)
        starter = first if self.state is JobState.RUNNING else 0
        return member.worker == starter and not member.reader and not self._tables.records[number].loaded

    def _table_made(self, member: Member, number: int) -> ToMember:
        made = pb.TableMade(table=number, upload=self._uploads(member, number))
        return tell(member, table_made=made)

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

    def _missing(self) -> list[str]:
        needed = range(0 if self.state is JobState.RUNNING else self.num_workers)
        return self._tables.missing(self.roster, needed)

    def _tell_waiting(self) -> list[Action]:
        """Tells those who have made a table that has not started what it waits for."""
        number = self._tables.waiting()
        if number is None:
            return []
        missing = "; ".join(self._missing())
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
        table.starting, table.started = False, True
        self.state, self.resumed = JobState.RUNNING, False
        return [self._table_started(member, number) for member in self.roster.here()]

    def _table_started(self, member: Member, number: int) -> ToMember:
        return tell(member, table_started=pb.TableStarted(table=number, step=self.clocks.get(number, 0)))

    # -- inside: ending --------------------------------------------------------------------------------

    def _removed(self, order: pb.RemoveMember, clocks: Mapping[int, int]) -> list[Action]:
        for number, clock in clocks.items():
            self.clocks[number] = max(self.clocks.get(number, 0), clock)
        member = self.roster.members[order.worker]
        if member.incarnation != order.incarnation:
            return []
        actions: list[Action] = []
        if member.state is MemberState.FINISHING:
            member.state = MemberState.FINISHED
            self._any_finished = True
        elif member.state is MemberState.LEAVING:
            member.state = MemberState.LEFT
            actions.append(tell(member, left=pb.Left()))
        return actions + self._check_end()

    def _check_end(self) -> list[Action]:
        """Whether the job goes on, ends, is suspended or is dropped, after somebody stopped training."""
        if self.state in (JobState.ENDED, JobState.SUSPENDED):
            return []
        training = self.roster.training()
        if training:
            return self._tell_finished(training) if self.state is JobState.RUNNING else self._tell_waiting()
        if not self._has_state:
            return [*(self._ended(member) for member in self.roster.finished()), *self.drop()]
        uploader = self.roster.first_finished()
        if uploader is not None:
            return [tell(uploader, upload_final=pb.UploadFinal())]
        if self._any_finished:
            return self._end()
        self.state = JobState.SUSPENDED
        self._tables.suspend()
        return []

    def _tell_finished(self, training: list[Member]) -> list[Action]:
        waiting = pb.Waiting(whom=", ".join(member.holder for member in training) + " to finish")
        return [tell(member, waiting=waiting) for member in self.roster.finished()]

    def _end(self) -> list[Action]:
        self.state = JobState.ENDED
        return [self._ended(member) for member in self.roster.present()]

    def _ended(self, member: Member) -> ToMember:
        return tell(member, ended=pb.Ended(has_state=self.has_final_state))
