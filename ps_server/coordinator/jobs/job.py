"""The life of a job, as the coordinator sees it: who belongs to it, which tables it has, when it ends.

    waiting    until as many workers as it needs have joined and made their tables, and the starter's weights
               are loaded
    running    members push and pull; others come and go
    suspended  no live member is left and none has finished: the servers keep the state; who joins goes on
    ended      no live member is left and at least one has finished: who joins now may read

Inputs are what workers say and what became of orders; each returns actions in order. Orders go to all shards,
one after the other; their outcome comes back as `done` or `failed`. It must not know streams or queues.

A worker stops by finishing, by leaving, or by being evicted: it was silent for longer than its lease, or was
refused. In the first two cases all that it pushed counts, in the last what had come to all partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ps_server.agreement.gate import Gate, gate_of
from ps_server.agreement.refusals import evicted, rolled_back
from ps_server.coordinator.epochs.epoch_book import ANY, EpochBook, Sharer
from ps_server.coordinator.jobs.actions import (
    Action,
    ToMember,
    ToShards,
    eviction,
    named,
    notices,
    refusal,
    refused_newcomer,
    removal,
    tell,
)
from ps_server.coordinator.jobs.job_calls import JobCalls
from ps_server.coordinator.jobs.loops import Loops
from ps_server.coordinator.jobs.member import Member, MemberState
from ps_server.coordinator.jobs.phase import JobState, Phase
from ps_server.coordinator.jobs.roster import Roster
from ps_server.coordinator.jobs.saved_job import SavedJob
from ps_server.coordinator.jobs.table_starts import TableStarts
from ps_wire.errors import ConfigurationRefused, Evicted, JobMismatch, PsError, ServerNotReady
from ps_wire.spec import consistency as models
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

REFUSED = "was refused: "
MAX_REFUSED = 8  # newcomers of whom those who wait are told: whoever reaches the port can be refused


class Job:
    """One job: what it is, and its parts. Not thread-safe.

    Attributes:
        name: of the job.
        consistency: its model.
        gate: of the model.
        num_workers: at most so many are in it at once.
        nonfinite: what becomes of gradients with NaN or infinity.
        min_workers: it starts with so many, by whichever numbers; 0: with all.
        phase: how far it is.
        roster: who is in it.
        starts: its tables, and what they wait for.
        epochs: who uses which samples.
        calls: that its workers make together.
        loops: of its workers over epochs.
        ends: worker -> table -> steps that count, of workers that are gone.
    """

    def __init__(
        self,
        name: str,
        consistency: str,
        num_workers: int,
        nonfinite: str = "error",
        min_workers: int = 0,
    ) -> None:
        """As nobody has come yet; `consistency` is a model as typed."""
        self.name = name
        self.consistency = models.parse(consistency)
        self.gate: Gate = gate_of(self.consistency)
        self.num_workers = num_workers
        self.nonfinite = nonfinite
        self.min_workers = min_workers
        self.phase = Phase()
        self.roster = Roster(name, num_workers)
        self.starts = TableStarts(
            name, num_workers=num_workers, min_workers=min_workers, roster=self.roster, phase=self.phase
        )
        self.epochs = EpochBook()
        self.calls = JobCalls(
            self.roster,
            self.phase,
            self.starts.tables,
            staleness=self.gate.staleness,
            num_workers=num_workers,
            min_workers=min_workers,
        )
        self.loops = Loops()
        self.ends: dict[int, dict[int, int]] = {}
        self._refused = 0  # newcomers, of whom others were told
        self._awaited: set[int] = set()  # gone with a job that was suspended
        self._uploaders: list[Member] = []  # who were asked for the final state

    # -- what can be asked -----------------------------------------------------------------------------

    @property
    def spec(self) -> spec_pb2.Job:
        """As a message."""
        return spec_pb2.Job(
            name=self.name,
            consistency=str(self.consistency),
            num_workers=self.num_workers,
            nonfinite=self.nonfinite,
            min_workers=self.min_workers,
        )

    @property
    def state(self) -> JobState:
        """The state of the job's life; the module's docstring has them all."""
        return self.phase.state

    @property
    def num_tables(self) -> int:
        """Tables that its workers have made so far."""
        return len(self.starts.tables)

    @property
    def specs(self) -> list[TableSpec]:
        """Of these tables, by number."""
        return [record.spec for record in self.starts.tables.records]

    @property
    def open_tables(self) -> list[TableSpec]:
        """Of those that its workers have made, the ones that all shards hold."""
        return [record.spec for record in self.starts.tables.records if record.opened]

    @property
    def num_started(self) -> int:
        """Of its tables, those that train."""
        return sum(record.started for record in self.starts.tables.records)

    @property
    def forgotten(self) -> bool:
        """Nobody is here and there is no state to keep."""
        return not self.roster.present() and not self.phase.has_state

    def sharing(self, ranks: int = 1, samples: int = 0) -> dict[int, Sharer]:
        """Who shares what begins now: those here, and those whom a job that starts with all still awaits.

        Who came in mid-run and has asked for nothing yet may go on behind it: it is awaited, too.

        One that has never come is taken to have as many `ranks` as who asks, if that many share `samples`; 0:
        these are not known.
        """
        members, asked = self.roster.members, self.epochs.asked()
        here = {}
        for it in self.roster.here():
            stands = not it.late or (it.worker, it.incarnation) in asked
            here[it.worker] = Sharer(it.incarnation if stands else ANY, it.ranks)
        if self.min_workers:
            return here
        awaited = {n for n in range(self.num_workers) if n not in members or n in self._awaited}
        joining = {n for n, member in members.items() if member.state is MemberState.JOINING}
        known = {n: members[n].ranks for n in awaited | joining if n in members}
        said = {n: it.ranks for n, it in here.items()} | {n: size for n, size in known.items() if size}
        unknown = len((awaited | joining) - said.keys())
        guess = ranks if not samples or sum(said.values()) + unknown * ranks <= samples else 1
        return {n: Sharer(ANY, said.get(n, guess)) for n in awaited | joining} | here

    def over(self, worker: int, incarnation: int) -> Evicted | None:
        """Why an incarnation takes no more steps, and its process comes as another; None: it does."""
        known = self.roster.members.get(worker)
        if 0 < incarnation <= self.roster.floor:  # a new coordinator need not know it
            return rolled_back(self.name, self.starts.first_steps.step)
        if known is None or known.reader:
            return None
        lost = known.incarnation == incarnation and known.state is MemberState.LOST
        return evicted(self.name, worker, incarnation) if lost or incarnation < known.incarnation else None

    # -- workers that come -----------------------------------------------------------------------------

    def refuse(self, who: str, error: PsError) -> list[Action]:
        """A newcomer was refused: those who wait for the start are told, `MAX_REFUSED` times at most."""
        if self.phase.state is not JobState.WAITING or self._refused >= MAX_REFUSED:
            return []
        self._refused += 1
        return [*refused_newcomer(self.roster.present(), who, error)]

    def refuse_member(self, member: Member, error: PsError) -> list[Action]:
        """Tells the others who it is whose message was refused, and why; its stream ends."""
        return [*notices(self.roster.present(), member, f"{type(error).__name__}: {error.message}", REFUSED)]

    def join(
        self,
        wanted: spec_pb2.Job,
        *,
        worker: int | None,
        host: str,
        pid: int,
        lease_s: float = 0.0,
        before: int = 0,
        ranks: int = 1,
    ) -> tuple[Member, list[Action]]:
        """A worker wants to belong; `worker` is None where the number is to be given to it.

        `before` is the incarnation that it had, 0 where it is new; `ranks` share out its batches.

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
        phase = self.phase
        if phase.broken is not None and self.roster.present():  # those who are here were told to go
            raise phase.broken
        phase.take_in()
        ended = phase.state is JobState.ENDED
        late = self.starts.tables.begun and not ended  # who is not, begins with the others
        if late and phase.has_state and not phase.restored:
            phase.enter(JobState.RUNNING)
        member = self.roster.add(
            number, host=host, pid=pid, reader=ended, late=late, lease_s=lease_s, ranks=ranks
        )
        self._awaited.discard(number)
        first_steps = self.starts.first_steps
        order = pb.AdmitMember(
            job=self.spec,
            worker=member.worker,
            incarnation=member.incarnation,
            clocks={table: first_steps.of(number, table) for table in range(self.num_tables)},
            reader=ended or late,
        )
        return member, [ToShards(pb.Order(admit=order))]

    def make_table(
        self, member: Member, spec: TableSpec, message: spec_pb2.Table | None = None
    ) -> list[Action]:
        """A worker makes its next table: see `TableStarts.made`, also for what it raises."""
        try:
            return self.starts.made(member, spec, message)
        except ConfigurationRefused as error:
            raise self._spent(error) from None

    def _spent(self, error: ConfigurationRefused) -> ConfigurationRefused:
        """The same; where the job has ended, with the way out: its name is spent by one run."""
        if self.state is not JobState.ENDED:
            return error
        return type(error)(
            f"{error.message}; job {self.name} has ended: to train again, take another --job, or drop this "
            f"one: ps-lab job drop {self.name}",
            **error.facts,
        )

    # -- workers that stop -----------------------------------------------------------------------------

    def uploaded_final(self, member: Member) -> list[Action]:
        """The last state outside tables is here: the job has ended, unless somebody has come to train on."""
        if not any(member is asked for asked in self._uploaders):
            raise ConfigurationRefused(f"worker {member.worker} was not asked for the final state")
        self.phase.keep_final_state()
        return self._check_end()

    def finish(self, member: Member) -> list[Action]:
        """A worker has no more data: it leaves the gates and waits for the others."""
        if member.reader:
            return [self._ended(member)]
        if member.state is not MemberState.JOINED:
            raise ConfigurationRefused(f"worker {member.worker} is {member.state}, it cannot finish")
        member.become(MemberState.FINISHING)
        return [removal(self.name, member)]

    def leave(
        self,
        member: Member,
        reason: str = "",
        clocks: Mapping[int, int] | None = None,
        *,
        torn: bool = False,
    ) -> list[Action]:
        """A worker goes, in order; with a reason, the others are told.

        Args:
            member: who.
            reason: for people.
            clocks: its steps, by table.
            torn: its ranks have not all left in order: some partitions may have its last push, and others
                not. It is evicted, so that of its pushes those count that are everywhere.
        """
        if torn and member.state is MemberState.JOINED and not member.reader:
            return self.lost(member, f"left: {reason}")
        if clocks:
            self.ends[member.worker] = dict(clocks)
        if member.state in (MemberState.JOINING, MemberState.JOINED) and not member.reader:
            member.become(MemberState.LEAVING)
            return [*notices(self.roster.present(), member, reason), removal(self.name, member)]
        member.become(MemberState.LEFT)
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
            self.epochs.gone(member.worker, member.incarnation, member.steps)
        member.become(MemberState.LOST)
        epoch = self.phase.change_members()
        error = evicted(self.name, member.worker, member.incarnation)
        return [*told, eviction(self.name, member, epoch), refusal(member, error)]

    def give_up(self, unheard: Sequence[Member]) -> list[Action]:
        """Those who trained at the cut of a snapshot have not come back, and no shard knows them."""
        for member in unheard:
            member.become(MemberState.LOST)
        self.epochs.never_came(member.worker for member in unheard)
        self.phase.change_members()
        whom = named([member.holder for member in unheard])
        notice = pb.Notice(text=f"not back since servers were started again: {whom}; we go on")
        return [*(tell(member, notice=notice) for member in self.roster.heard()), *self._check_end()]

    def tell_here(self, text: str) -> list[Action]:
        """Everybody who trains is told something, in one line."""
        return [tell(member, notice=pb.Notice(text=text)) for member in self.roster.here()]

    def tell_all(self, error: PsError) -> list[Action]:
        """Everybody present is told why the job cannot go on; they leave by themselves."""
        self.phase.send_away(error)
        return [refusal(member, error) for member in self.roster.present()]

    def dismiss(self, error: PsError) -> list[Action]:
        """A person drops the job: all are told, and are out, however long they take to go."""
        told = self.tell_all(error)
        for member in self.roster.present():
            member.become(MemberState.LOST)
        self.drop()  # the order is sent beside others, and until all shards have carried it out
        return told

    def drop(self) -> list[Action]:
        """The job's state is given up: it is as if it had never been."""
        self.phase.clear()
        self._uploaders.clear()
        self.starts.clear()
        self.epochs.clear()
        self.calls.collectives.clear()
        self.ends.clear()
        self.loops.clear()
        return [ToShards(pb.Order(drop_job=pb.DropJob(job=self.name)))]

    # -- outcomes of orders ----------------------------------------------------------------------------

    def done(self, order: pb.Order, clocks: Mapping[int, int]) -> list[Action]:
        """Every shard has carried the order out; `clocks` are the newest by table (remove, evict)."""
        match order.WhichOneof("kind"):
            case "admit":
                return self._admitted(order.admit)
            case "remove":
                return self._removed(order.remove.worker, order.remove.incarnation, clocks)
            case "evict":
                return self._evicted(order.evict, clocks)
            case "open_table":
                return self.starts.opened(order.open_table.table.number)
            case "start_table":
                return self.starts.started(order.start_table.table)
        return self.starts.entered(order.enter) if order.HasField("enter") else []

    def failed(self, order: pb.Order, error: PsError, *, sent: bool = True) -> list[Action]:
        """A shard refused the order, or is not there: whom it concerns is told.

        Who was to be let in may have been, on some shards: it is taken out again on all of them, however long
        that takes, before anything else is ordered. An order that was not `sent` needs no undoing.
        """
        match order.WhichOneof("kind"):
            case "admit":
                return self._not_admitted(order.admit, error, sent=sent)
            case "remove":
                return self._not_removed(order.remove.worker, order.remove.incarnation, error)
            case "fence":
                return self._not_removed(order.fence.worker, order.fence.incarnation, error)
            case "evict":
                return self._not_removed(order.evict.worker, order.evict.incarnation, error)
        return self.tell_all(error)

    def _not_admitted(self, order: pb.AdmitMember, error: PsError, *, sent: bool) -> list[Action]:
        member = self.roster.members[order.worker]
        if member.incarnation != order.incarnation or not member.present:
            return []
        member.become(MemberState.LOST)
        undone = [removal(self.name, member)] if sent else self._check_end()
        return [refusal(member, error), *undone]

    def _not_removed(self, worker: int, incarnation: int, error: PsError) -> list[Action]:
        told = self.tell_all(error)
        member = self.roster.members[worker]
        if member.incarnation == incarnation:
            member.become(MemberState.LOST)
        return told + self._check_end()

    def _admitted(self, order: pb.AdmitMember) -> list[Action]:
        member = self.roster.members[order.worker]
        if member.incarnation != order.incarnation or member.state is not MemberState.JOINING:
            return []
        member.become(MemberState.JOINED)
        self.phase.change_members()
        joined = pb.Joined(
            worker=member.worker,
            incarnation=member.incarnation,
            ended=member.reader,
            resumed=member.late,
            rolled_back=self.phase.restored,
            num_tables=self.num_tables,
        )
        return [tell(member, joined=joined), *self.starts.tell_waiting()]

    def _evicted(self, gone: pb.EvictMember, clocks: Mapping[int, int]) -> list[Action]:
        """All shards have evicted a worker: of its pushes, those of the steps before the limits count."""
        self.epochs.gone(gone.worker, gone.incarnation, max(gone.limits.values(), default=0))
        self.ends[gone.worker] = dict(gone.limits)
        return self._removed(gone.worker, gone.incarnation, clocks)

    def _removed(self, worker: int, incarnation: int, clocks: Mapping[int, int]) -> list[Action]:
        """All shards have taken a worker out of the gates; `clocks` are the newest by table."""
        self.starts.first_steps.saw(clocks)
        self.phase.change_members()
        member = self.roster.members[worker]
        if member.incarnation != incarnation:
            return []
        actions: list[Action] = []
        if member.state is MemberState.FINISHING:
            member.become(MemberState.FINISHED)
            self.phase.see_finished()
            self.epochs.finished(worker, incarnation, member.steps)
        elif member.state is MemberState.LEAVING:
            member.become(MemberState.LEFT)
            self.epochs.gone(worker, incarnation, member.steps)
            actions.append(tell(member, left=pb.Left()))
        return actions + self._check_end()

    # -- servers that lost what they held --------------------------------------------------------------

    def roll_back(self, saved: SavedJob, *, floor: int) -> list[Action]:
        """All shards hold the snapshot's part of the job by now: it goes on from there.

        Who trains, or has finished and not gone, is told to come back, and waited for as long as its lease is
        renewed. A coordinator that knows nobody waits for those who trained at the cut.

        Args:
            saved: the snapshot.
            floor: incarnations up to this one are over.
        """
        self.phase.roll_back(ended=saved.ended, has_final_state=saved.ended and "final" in saved.states)
        self._uploaders.clear()
        self.starts.restore(saved)
        self.epochs.restore(saved.shares)
        self.calls.collectives.roll_back()
        self.ends.clear()
        self.loops.go_back(max((it.epoch for it in saved.shares if it.trains and it.used), default=-1))
        known = bool(self.roster.members)
        self.roster.end_incarnations(floor)
        actions: list[Action] = []
        for member in self.roster.present():
            if member.state is MemberState.JOINING or member.reader:
                member.become(MemberState.LOST)
                error = ServerNotReady(f"job {self.name} is going back to a snapshot: join again")
                actions.append(refusal(member, error))
                if member.worker in saved.workers and not member.reader and not saved.ended:
                    self._await(member.worker, member.lease_s)  # it does not know yet as whom it had joined
            else:
                member.send_back()
                actions.append(self.go_back(member))
        for worker in sorted(saved.workers) if not known and not saved.ended else ():
            self._await(worker, saved.workers[worker])
        return actions + self._check_end()

    def _await(self, worker: int, lease_s: float) -> None:
        """Whoever comes with this number is waited for."""
        state = MemberState.RETURNING
        self.roster.add(worker, host="", pid=0, reader=False, lease_s=lease_s, state=state)

    def go_back(self, member: Member) -> ToMember:
        """Makes what one who is returning is told: the job went back."""
        error = rolled_back(self.name, self.starts.first_steps.step)
        return tell(member, rolled_back=pb.RolledBack(step=error.step, why=error.message))

    # -- loops over epochs -----------------------------------------------------------------------------

    def stop(self, member: Member | None, reason: str) -> list[Action]:
        """A worker, or a person, wants the job to end, after the newest epoch that a worker has begun."""
        if self.phase.state is JobState.ENDED:
            return []
        who = "a person" if member is None else member.holder
        if not self.loops.stop(who, reason, for_good=member is None):
            return []
        notice = pb.Notice(text=self.loops.stopped)
        return [tell(other, notice=notice) for other in self.roster.here() if other is not member]

    # -- its end ---------------------------------------------------------------------------------------

    def _check_end(self) -> list[Action]:
        """Whether the job goes on, ends, is suspended or is dropped, after somebody stopped training."""
        phase = self.phase
        if phase.state in (JobState.ENDED, JobState.SUSPENDED):
            return []
        training = self.roster.training()
        if training:
            waiting = self.starts.go_on_without()
            return [*waiting, *self._tell_finished(training)] if phase.state is JobState.RUNNING else waiting
        if not phase.has_state:
            return [*(self._ended(member) for member in self.roster.finished()), *self.drop()]
        uploader = self.roster.first_finished()
        if uploader is not None and not phase.has_final_state:
            self._uploaders.append(uploader)
            return [tell(uploader, upload_final=pb.UploadFinal())]
        if phase.any_finished:
            return self._end()
        started = self.starts.without_anybody()
        phase.enter(JobState.SUSPENDED)
        self.starts.tables.suspend()
        self.epochs.suspend()
        self._awaited = set(range(self.num_workers))
        return started

    def _tell_finished(self, training: list[Member]) -> list[Action]:
        waiting = pb.Waiting(whom=named([member.holder for member in training]) + " to finish")
        return [tell(member, waiting=waiting) for member in self.roster.finished()]

    def _end(self) -> list[Action]:
        self.phase.enter(JobState.ENDED)
        self.epochs.end()
        return [self._ended(member) for member in self.roster.present()]

    def _ended(self, member: Member) -> ToMember:
        return tell(member, ended=pb.Ended(has_state=self.phase.has_final_state))

    # -- hand-off --------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """All of it but what it is, for JSON."""
        phase = self.phase.dump()
        return {
            "state": phase.pop("state"),
            "plain": phase | self.loops.dump(),
            "pairs": self.starts.first_steps.dump(),
            "shares": self.epochs.dump(),
            "collectives": self.calls.collectives.dump(),
            "ends": [[worker, list(map(list, clocks.items()))] for worker, clocks in self.ends.items()],
            "awaited": sorted(self._awaited),
            "uploaders": [
                asked.worker for asked in self._uploaders if asked is self.roster.members.get(asked.worker)
            ],
            **self.roster.dump(),
            "tables": self.starts.tables.dump(),
        }

    def load(self, facts: Mapping[str, Any]) -> None:
        """Goes on with what was dumped; what a release before does not say is as at the start."""
        self.phase.load({"state": facts["state"], **facts["plain"]})
        self.loops.load(facts["plain"])
        self.epochs.load(facts["shares"])
        if "collectives" in facts:
            self.calls.collectives.load(facts["collectives"])
        self.ends = {worker: dict(clocks) for worker, clocks in facts.get("ends", ())}
        self._awaited = set(facts["awaited"])
        self.roster.load(facts)
        self._uploaders = [self.roster.members[worker] for worker in facts["uploaders"]]
        self.starts.load(facts["tables"], facts["pairs"])


def check_job(job: spec_pb2.Job, wanted: spec_pb2.Job) -> None:
    """Refuses a worker that wants another job than the one of that name.

    Raises:
        JobMismatch: naming what differs.
    """
    for what, expected, got in (
        ("consistency", job.consistency, wanted.consistency),
        ("number of workers", size_of(job), size_of(wanted)),
        ("nonfinite", job.nonfinite, wanted.nonfinite),
    ):
        if expected != got:
            raise JobMismatch(
                f"{what} of job {job.name}: the job has {expected}, this worker wants {got}",
                what=what,
                expected=str(expected),
                got=str(got),
            )


def size_of(job: spec_pb2.Job) -> str:
    """As people write it: `4`, or `2:8`."""
    return f"{job.min_workers}:{job.num_workers}" if job.min_workers else f"{job.num_workers}"
