"""Members of a job that stop training, and what becomes of the job then: the base of `membership.Job`.

A worker stops by finishing, by leaving, or by being evicted: it was silent for longer than its lease, or was
refused. In the first two cases all that it pushed counts, in the last what had come to all partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ps_server.agreement.gate import gate_of
from ps_server.agreement.refusals import evicted, rolled_back
from ps_server.coordinator.epochs.epoch_book import ANY, EpochBook
from ps_server.coordinator.jobs.collectives import ABSENT, Collectives, Outcome
from ps_server.coordinator.jobs.member import (
    Action,
    JobState,
    Member,
    MemberState,
    ToMember,
    ToShards,
    eviction,
    named,
    notices,
    refusal,
    removal,
    size_of,
    tell,
)
from ps_server.coordinator.jobs.roster import Roster
from ps_server.coordinator.jobs.tables import JobTables
from ps_wire.errors import ConfigurationRefused, Evicted, PsError
from ps_wire.spec import consistency
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2


@dataclass(slots=True)
class JobLife:
    """See the module's docstring. Not thread-safe.

    Attributes:
        name: of the job.
        consistency: as typed.
        num_workers: at most so many are in it at once.
        nonfinite: what becomes of gradients with NaN or infinity.
        min_workers: it starts with so many, by whichever numbers; 0: with all.
        epoch: of its membership; grows with every change.
        ends: table -> steps that count, of workers that are gone, by number.
        last_epoch: of its workers' loops, after which it ends; None: nobody has stopped it.
        stopped: who has, and why, for people.
        collectives: calls that its workers make together.
    """

    name: str
    consistency: str
    num_workers: int
    nonfinite: str = "error"
    min_workers: int = 0
    state: JobState = JobState.WAITING
    epoch: int = 0
    has_final_state: bool = False
    shares: EpochBook = field(default_factory=EpochBook)
    collectives: Collectives = field(default_factory=Collectives)
    clocks: dict[int, int] = field(default_factory=dict)
    ends: dict[int, dict[int, int]] = field(default_factory=dict)
    last_epoch: int | None = None
    stopped: str = ""
    roster: Roster = field(init=False)
    _tables: JobTables = field(init=False)
    _awaited: set[int] = field(default_factory=set)  # gone with a job that was suspended
    _any_finished: bool = False
    _uploaders: list[Member] = field(default_factory=list)  # who were asked for the final state
    _broken: PsError | None = None
    _first_steps: dict[tuple[int, int], int] = field(default_factory=dict)  # (table, worker)
    _restored: bool = False  # from a snapshot, and nobody has begun to train yet
    _newest_epoch: int = -1  # of its workers' loops that one of them has begun

    def __post_init__(self) -> None:
        self.roster = Roster(self.name, self.num_workers)
        self._tables = JobTables(self.name)

    # -- what can be asked -----------------------------------------------------------------------------

    @property
    def spec(self) -> spec_pb2.Job:
        """As a message."""
        return spec_pb2.Job(
            name=self.name,
            consistency=self.consistency,
            num_workers=self.num_workers,
            nonfinite=self.nonfinite,
            min_workers=self.min_workers,
        )

    @property
    def size(self) -> str:
        """Its number of workers, as people write it."""
        return size_of(self.spec)

    @property
    def num_tables(self) -> int:
        """Tables that its workers have made so far."""
        return len(self._tables)

    @property
    def specs(self) -> list[TableSpec]:
        """Of these tables, by number."""
        return [record.spec for record in self._tables.records]

    @property
    def open_tables(self) -> list[TableSpec]:
        """Of those that its workers have made, the ones that all shards hold."""
        return [record.spec for record in self._tables.records if record.opened]

    @property
    def num_started(self) -> int:
        """Of its tables, those that train."""
        return sum(record.started for record in self._tables.records)

    @property
    def forgotten(self) -> bool:
        """Nobody is here and there is no state to keep."""
        return not self.roster.present() and not self._has_state

    @property
    def _has_state(self) -> bool:
        return self.state is not JobState.WAITING or self._restored

    def sharing(self) -> dict[int, int]:
        """Who shares what begins now: those here, and those whom a job that starts with all still awaits."""
        members = self.roster.members
        sharing = {member.worker: member.incarnation for member in self.roster.here()}
        if not self.min_workers:
            awaited = {n for n in range(self.num_workers) if n not in members or n in self._awaited}
            joining = {n for n, member in members.items() if member.state is MemberState.JOINING}
            sharing |= dict.fromkeys(awaited | joining, ANY) | sharing
        return sharing

    def calling(self) -> dict[int, int]:
        """Whom a call that all workers make together waits for: worker -> incarnation.

        Those who are here or on their way; of a job that starts with all, before that, all. Of those who came
        in mid-run, who takes part already.
        """
        coming = (MemberState.JOINING, MemberState.JOINED, MemberState.RETURNING)
        calling = {
            member.worker: member.incarnation
            for member in self.roster.members.values()
            if member.state in coming
            and not member.reader
            and (not member.late or self.collectives.takes_part(member.worker, member.incarnation))
        }
        if self.state is JobState.WAITING and not self.min_workers and not self._restored:
            present = {member.worker for member in self.roster.present()}
            calling |= {number: ABSENT for number in range(self.num_workers) if number not in present}
        return calling

    def stands(self, member: Member, number: int) -> None:
        """A member says beside its calls which one is its next."""
        if not member.late or self.collectives.takes_part(member.worker, member.incarnation):
            self.collectives.stands(member.worker, member.incarnation, number)

    def settle_call(self, number: int) -> Outcome | None:
        """The outcome of a call that all workers make together, if there is one by now."""
        starting = self.state is JobState.WAITING and not self._restored
        least = self.min_workers if starting else 0
        return self.collectives.settle(number, self.calling(), at_least=least)

    def needed(self, member: Member, clocks: Mapping[int, int]) -> dict[int, int]:
        """Table -> the step that others wait for a member to come to, while it waits in a call.

        Args:
            member: who takes no steps now.
            clocks: table -> the step that it takes next.
        """
        staleness = gate_of(consistency.parse(self.consistency)).staleness
        if staleness is None:
            return {}
        others = [other for other in self.roster.here() if other is not member and not other.reader]
        needed = {
            table: max((it.taken.get(table, 0) for it in others), default=0) - staleness
            for table in range(self.num_tables)
            if table in clocks
        }
        return {table: step for table, step in needed.items() if step > clocks[table]}

    def elsewhere(self) -> list[Member]:
        """Who trains, as far as is known, while others wait in a call."""
        here = [member for member in self.roster.here() if not member.reader]
        return [it for it in here if not self.collectives.waits(it.worker, it.incarnation)]

    def missing_in_call(self, number: int) -> str:
        """Who it waits for, for people."""
        members = self.roster.members
        missing = self.collectives.missing(number, self.calling())
        return named([members[it].holder if it in members else f"worker {it}" for it in missing])

    def over(self, worker: int, incarnation: int) -> Evicted | None:
        """Why an incarnation takes no more steps, and its process comes as another; None: it does."""
        known = self.roster.members.get(worker)
        if 0 < incarnation <= self.roster.floor:  # a new coordinator need not know it
            return rolled_back(self.name, max(self.clocks.values(), default=0))
        if known is None or known.reader:
            return None
        lost = known.incarnation == incarnation and known.state is MemberState.LOST
        return evicted(self.name, worker, incarnation) if lost or incarnation < known.incarnation else None

    # -- inputs ----------------------------------------------------------------------------------------

    def uploaded_final(self, member: Member) -> list[Action]:
        """The last state outside tables is here: the job has ended, unless somebody has come to train on."""
        if not any(member is asked for asked in self._uploaders):
            raise ConfigurationRefused(f"worker {member.worker} was not asked for the final state")
        self.has_final_state = True
        return self._check_end()

    def finish(self, member: Member) -> list[Action]:
        """A worker has no more data: it leaves the gates and waits for the others."""
        if member.reader:
            return [self._ended(member)]
        if member.state is not MemberState.JOINED:
            raise ConfigurationRefused(f"worker {member.worker} is {member.state}, it cannot finish")
        member.state = MemberState.FINISHING
        return [removal(self.name, member)]

    def leave(
        self, member: Member, reason: str = "", clocks: Mapping[int, int] | None = None
    ) -> list[Action]:
        """A worker goes, in order; with a reason, the others are told. `clocks`: its steps, by table."""
        if clocks:
            self.ends[member.worker] = dict(clocks)
        if member.state in (MemberState.JOINING, MemberState.JOINED) and not member.reader:
            member.state = MemberState.LEAVING
            return [*notices(self.roster.present(), member, reason), removal(self.name, member)]
        member.state = MemberState.LEFT
        return [tell(member, left=pb.Left()), *self._check_end()]

    def lost(self, member: Member, why: str = "") -> list[Action]:
        """A worker is evicted: it was silent for longer than its lease, or was told to go.

        Args:
            member: who.
            why: as the others are told; nothing where they know.
        """
        if not member.present:
            return []
        told = notices(self.roster.present(), member, why, "")
        if member.state in (MemberState.LEAVING, MemberState.FINISHING):
            # it has said how far it came; all of it counts with its removal, which is before its eviction
            self.shares.gone(member.worker, member.incarnation, member.steps)
        member.state = MemberState.LOST
        self.epoch += 1
        error = evicted(self.name, member.worker, member.incarnation)
        return [*told, eviction(self.name, member, self.epoch), refusal(member, error)]

    def give_up(self, unheard: Sequence[Member]) -> list[Action]:
        """Those who trained at the cut of a snapshot have not come back, and no shard knows them."""
        for member in unheard:
            member.state = MemberState.LOST
        self.shares.never_came(member.worker for member in unheard)
        self.epoch += 1
        whom = named([member.holder for member in unheard])
        notice = pb.Notice(text=f"not back since servers were started again: {whom}; we go on")
        return [*(tell(member, notice=notice) for member in self.roster.heard()), *self._check_end()]

    def tell_all(self, error: PsError) -> list[Action]:
        """Everybody present is told why the job cannot go on; they leave by themselves."""
        self._broken = self._broken or error
        return [refusal(member, error) for member in self.roster.present()]

    def dismiss(self, error: PsError) -> list[Action]:
        """A person drops the job: all are told, and are out, however long they take to go."""
        told = self.tell_all(error)
        for member in self.roster.present():
            member.state = MemberState.LOST
        self.drop()  # the order is sent beside others, and until all shards have carried it out
        return told

    def drop(self) -> list[Action]:
        """The job's state is given up: it is as if it had never been."""
        self.state = JobState.WAITING
        self._any_finished = self.has_final_state = False
        self._uploaders.clear()
        self._tables.records.clear()
        self._restored = False
        self._first_steps.clear()
        self.clocks.clear()
        self.shares.clear()
        self.collectives.clear()
        self.forget_loops()
        return [ToShards(pb.Order(drop_job=pb.DropJob(job=self.name)))]

    # -- loops over epochs -----------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> bool:
        """A worker is about to begin this epoch of its loop; whether it is to."""
        if self.last_epoch is not None and epoch > self.last_epoch:
            return False
        self._newest_epoch = max(self._newest_epoch, epoch)
        return True

    def stop(self, member: Member, reason: str) -> list[Action]:
        """A worker wants the job to end, for all after the newest epoch that one of them has begun."""
        if self.last_epoch is not None:
            return []
        self.last_epoch = max(self._newest_epoch, 0)
        self.stopped = f"{member.holder} has stopped the job after epoch {self.last_epoch}: {reason}"
        notice = pb.Notice(text=self.stopped)
        return [tell(other, notice=notice) for other in self.roster.here() if other is not member]

    def forget_loops(self) -> None:
        """The job is as it was at its start, or at a snapshot: no epoch has begun since."""
        self.ends.clear()
        self.last_epoch, self.stopped, self._newest_epoch = None, "", -1

    # -- what follows ----------------------------------------------------------------------------------

    def _removed(self, worker: int, incarnation: int, clocks: Mapping[int, int]) -> list[Action]:
        """All shards have taken a worker out of the gates; `clocks` are the newest by table."""
        for number, clock in clocks.items():
            self.clocks[number] = max(self.clocks.get(number, 0), clock)
        self.epoch += 1
        member = self.roster.members[worker]
        if member.incarnation != incarnation:
            return []
        actions: list[Action] = []
        if member.state is MemberState.FINISHING:
            member.state = MemberState.FINISHED
            self._any_finished = True
            self.shares.finished(worker, incarnation, member.steps)
        elif member.state is MemberState.LEAVING:
            member.state = MemberState.LEFT
            self.shares.gone(worker, incarnation, member.steps)
            actions.append(tell(member, left=pb.Left()))
        return actions + self._check_end()

    def _check_end(self) -> list[Action]:
        """Whether the job goes on, ends, is suspended or is dropped, after somebody stopped training."""
        if self.state in (JobState.ENDED, JobState.SUSPENDED):
            return []
        training = self.roster.training()
        if training:
            waiting = self._go_on_without()
            return [*waiting, *self._tell_finished(training)] if self.state is JobState.RUNNING else waiting
        if not self._has_state:
            return [*(self._ended(member) for member in self.roster.finished()), *self.drop()]
        uploader = self.roster.first_finished()
        if uploader is not None and not self.has_final_state:
            self._uploaders.append(uploader)
            return [tell(uploader, upload_final=pb.UploadFinal())]
        if self._any_finished:
            return self._end()
        started = self._start_restored()
        self.state = JobState.SUSPENDED
        self._tables.suspend()
        self.shares.suspend()
        self._awaited = set(range(self.num_workers))
        return started

    def _start_restored(self) -> list[Action]:
        """Nobody has come back to a job that was restored: whoever comes later goes on with it."""
        if not self._restored:
            return []
        self._restored = False
        orders: list[Action] = []
        for number, record in enumerate(self._tables.records):
            record.started = True
            orders.append(ToShards(pb.Order(start_table=pb.StartTable(job=self.name, table=number))))
        return orders

    def _go_on_without(self) -> list[Action]:
        """Those who wait for a table to start may have waited for the one who went."""
        raise NotImplementedError

    def _tell_finished(self, training: list[Member]) -> list[Action]:
        waiting = pb.Waiting(whom=named([member.holder for member in training]) + " to finish")
        return [tell(member, waiting=waiting) for member in self.roster.finished()]

    def _end(self) -> list[Action]:
        self.state = JobState.ENDED
        self.shares.end()
        return [self._ended(member) for member in self.roster.present()]

    def _ended(self, member: Member) -> ToMember:
        return tell(member, ended=pb.Ended(has_state=self.has_final_state))
