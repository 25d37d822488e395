"""Streams of a job's members to the coordinator: joins, what workers say, streams that break and come again.

A stream that breaks is no death: the lease decides. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

import grpc.aio

from ps_server.coordinator.drops import Drops
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.jobs.mailbox import LAST_WORDS, Mailbox, Stream
from ps_server.coordinator.jobs.member import Member, MemberState
from ps_server.coordinator.jobs.phase import JobState
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.late_joins import LateJoins
from ps_server.coordinator.lease_watch import LeaseWatch
from ps_server.coordinator.live_extras import LiveExtras
from ps_server.coordinator.recovery import Recovery
from ps_server.coordinator.said import check_counts, check_pairs, check_size, steps_by_table
from ps_server.coordinator.snapshots.scheduler import SnapshotScheduler
from ps_server.events import Event
from ps_server.log import logger
from ps_server.rpc import auth as gatekeeper
from ps_server.rpc.first_message import first_message
from ps_wire.errors import (
    ConfigurationRefused,
    FrameMalformed,
    InternalError,
    JobFull,
    JobMismatch,
    JobUnknown,
    PsError,
    ServerNotReady,
    StrangerRefused,
    UsageError,
    WorkerNumberTaken,
)
from ps_wire.frames.frame import check_protocol
from ps_wire.frames.messages import refused_to_proto, table_from_proto
from ps_wire.process import watched
from ps_wire.process.ranks import MAX_SIZE
from ps_wire.spec.job_spec import check_lease, check_spec
from ps_wire.spec.table import MAX_TABLES, TableSpec
from ps_wire.text import one_line
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

MAX_METRICS = 64
MAX_HOST, MAX_MEMBER_TEXT = 255, 500  # characters
JOIN_LIMIT_S = 10.0


class MemberStreams:
    """The streams of all members of all jobs: each stream, and what follows from its messages."""

    def __init__(
        self,
        fleet: Fleet,
        runners: Mapping[str, JobRunner],
        runner_of: Callable[[spec_pb2.Job], JobRunner],
        *,
        live: LiveExtras,
        late_joins: LateJoins,
        scheduler: SnapshotScheduler,
        leases: LeaseWatch,
        recovery: Recovery,
        drops: Drops,
    ) -> None:
        """Nobody has come yet; `runner_of` gives the runner of a job, a new one if need be."""
        self._fleet = fleet
        self._runners = runners
        self._runner_of = runner_of
        self._live = live
        self._late_joins = late_joins
        self._scheduler = scheduler
        self._leases = leases
        self._recovery = recovery
        self._drops = drops
        self._closed = False

    def close(self) -> None:
        """Ends all streams; who comes is to come again, to this coordinator's successor."""
        self._closed = True
        for runner in self._runners.values():
            for mailbox in runner.mailboxes.values():
                mailbox.end_stream()

    async def serve(self, messages: AsyncIterator[pb.MemberRequest]) -> AsyncGenerator[pb.MemberReply]:
        """One stream: the first message joins, or resumes; an error ends it with `refused`."""
        try:
            runner, member, mailbox, stream = await self._begin(messages)
        except PsError as error:
            level = logging.DEBUG if error.retryable else logging.WARNING
            self._fleet.own.complaints.say(level, "a worker", "join refused: %s", error)
            yield pb.MemberReply(refused=refused_to_proto(error))
            return
        reading = watched.task(
            f"reading the stream of worker {member.worker} of job {runner.job.name}",
            self._read(messages, runner, member, mailbox),
            log=logger,
            failed=lambda error: mailbox.put(_refused_by(error)),
        )
        try:
            while (reply := await stream.get()) is not None:
                yield reply
                if reply.WhichOneof("kind") in LAST_WORDS:
                    # The worker closes first, so that its last message is not cut off by ours.
                    await asyncio.wait([reading], timeout=JOIN_LIMIT_S)
                    self._gone(runner, member)
                    runner.close(member)
                    return
        finally:
            reading.cancel()
            mailbox.detach(stream)
            over = mailbox.over  # the last word has been said: this end of the stream may be how it was heard
            if (over or member.lease_s == 0) and not self._closed:  # nothing else says that it is gone
                self._gone(runner, member)
            if (over or not member.present) and not self._closed:
                runner.close(member)

    async def _begin(
        self, messages: AsyncIterator[pb.MemberRequest]
    ) -> tuple[JobRunner, Member, Mailbox, Stream]:
        if self._closed:
            raise ServerNotReady("the coordinator stops, and its successor goes on")
        try:
            first = await first_message(anext(aiter(messages)), JOIN_LIMIT_S)
        except StopAsyncIteration:
            raise FrameMalformed("a member's stream starts with a join") from None
        match first.WhichOneof("kind"):
            case "join":
                return await self._join(first.join)
            case "resume":
                return self._resume(first.resume)
        raise FrameMalformed("a member's stream starts with a join")

    async def _join(self, join: pb.Join) -> tuple[JobRunner, Member, Mailbox, Stream]:
        gatekeeper.check_job(join.job.name)
        try:
            check_protocol(join.protocol)
            wanted = check_spec(join.job)
            lease_s = check_lease(join.lease_s)
            ranks = _ranks_of(join)
        except (ConfigurationRefused, UsageError) as error:
            self._say_refused(join, error)
            raise
        self._fleet.check_ready()
        self._check_recovered(wanted.name)
        worker = join.worker if join.HasField("worker") else None
        while True:
            runner = self._runner_of(wanted)
            try:
                member, actions = runner.job.join(
                    wanted,
                    worker=worker,
                    host=one_line(join.host, MAX_HOST),
                    pid=join.pid,
                    lease_s=lease_s,
                    before=join.evicted,
                    ranks=ranks,
                )
                break
            except (WorkerNumberTaken, JobFull) as error:
                if not await self._gives_way(runner, worker):
                    self._say_refused(join, error)
                    raise
            except JobMismatch as error:
                self._say_refused(join, error)
                raise
        if not member.reader:
            self._scheduler.joins(runner.job.name)
        mailbox = runner.admit(member, actions)
        event = Event.REJOIN if join.evicted else Event.JOIN
        runner.events.record(event, member, membership_epoch=runner.job.phase.membership_epoch)
        self._leases.look()
        return runner, member, mailbox, mailbox.attach()

    def _say_refused(self, join: pb.Join, error: PsError) -> None:
        """Tells those who wait for the start that a worker with a token of their job was refused."""
        if (runner := self._runners.get(join.job.name)) is not None:
            runner.do(runner.job.refuse(_newcomer(join), error))

    async def _gives_way(self, runner: JobRunner, worker: int | None) -> bool:
        """Whether one of those who are in the way of a join goes before all have shown that they live."""
        holders = runner.job.roster.holders(worker)
        before_s = {id(holder): runner.heard_s.get(holder.worker, 0.0) for holder in holders}
        for holder in holders:
            mailbox = runner.mailboxes.get((holder.worker, holder.incarnation))
            if mailbox is not None:
                mailbox.ask(pb.MemberReply(prove=pb.Prove()))
        while holders:
            if not all(holder.present for holder in holders):
                return True
            if all(
                holder.state is not MemberState.LEAVING
                and (holder.lease_s == 0 or runner.heard_s.get(holder.worker, 0.0) > before_s[id(holder)])
                for holder in holders
            ):
                return False
            await runner.changed()
        return False

    def _resume(self, resume: pb.Resume) -> tuple[JobRunner, Member, Mailbox, Stream]:
        gatekeeper.check_job(resume.job)
        if (gone := self._drops.over(resume.job, resume.incarnation)) is not None:
            raise gone
        runner = self._runners.get(resume.job)
        if runner is None:
            self._check_recovered(resume.job)
            raise JobUnknown(
                f"no job {resume.job[:64]!r} here: shard 0 was started again, and keeps nothing of it; start "
                "it again, and servers with --snapshot-dir, --snapshot-every and --state-dir"
            )
        known = runner.job.roster.members.get(resume.worker)
        unheard = known is not None and (known.worker, known.incarnation) not in runner.mailboxes
        of_before = resume.incarnation <= runner.job.roster.floor  # as all that a coordinator has given
        if known is not None and known.state is MemberState.RETURNING and unheard and of_before:
            # one of those that the coordinator before this one knew
            taken_back = runner.take_back(known, resume)
            return runner, known, taken_back, self._attached(taken_back)
        mailbox = runner.mailboxes.get((resume.worker, resume.incarnation))
        if mailbox is None or known is None or known.incarnation != resume.incarnation:
            over = runner.job.over(resume.worker, resume.incarnation)
            raise over or JobUnknown(f"worker {resume.worker} is not in job {runner.job.name}")
        if not hmac.compare_digest(mailbox.session, resume.session):
            raise StrangerRefused(f"this is not the session of worker {resume.worker}", worker=resume.worker)
        mailbox.heard(resume.heard)
        stream = self._attached(mailbox)
        runner.heard(known)
        runner.events.record(Event.RESUME, known, membership_epoch=runner.job.phase.membership_epoch)
        return runner, known, mailbox, stream

    @staticmethod
    def _attached(mailbox: Mailbox) -> Stream:
        stream = mailbox.attach()
        mailbox.ask(pb.MemberReply(resumed=pb.Resumed(taken=mailbox.taken)))
        return stream

    def _check_recovered(self, job: str) -> None:
        self._recovery.check(job)
        self._drops.check(job)

    # -- what workers say ------------------------------------------------------------------------------

    async def _read(
        self, messages: AsyncIterator[pb.MemberRequest], runner: JobRunner, member: Member, mailbox: Mailbox
    ) -> None:
        try:
            async for message in messages:
                if not member.present or self._closed:  # it has not heard yet that it was evicted
                    continue
                runner.heard(member)
                spec = None
                if message.WhichOneof("kind") != "make_table":
                    check_size(message)
                else:  # it takes as long as there are parameters
                    made = message.make_table
                    check_counts(made.table)
                    spec = await self._fleet.beside.run(runner.job.name, _table_of, made, runner.job.specs)
                    if not member.present or self._closed:
                        continue
                # what one says who is to come back, but that it goes, is of steps that are no more
                void = member.state is MemberState.RETURNING and message.number and not _leaves(message)
                if mailbox.receive(message) and not void:
                    if spec is not None:
                        self._late_joins.make_table(runner, member, spec, message.make_table.table)
                    else:
                        self._receive(message, runner, member, mailbox)
        except PsError as error:
            peer = f"job {runner.job.name} worker {member.worker}"
            self._fleet.own.complaints.say(logging.WARNING, peer, "refused: %s", error)
            runner.do(runner.job.refuse_member(member, error))
            mailbox.put(pb.MemberReply(refused=refused_to_proto(error)))
        except grpc.aio.AioRpcError as error:
            logger.debug("job %s worker %d: stream broke: %s", runner.job.name, member.worker, error)

    def _receive(
        self, message: pb.MemberRequest, runner: JobRunner, member: Member, mailbox: Mailbox
    ) -> None:
        job = runner.job
        match message.WhichOneof("kind"):
            case "heartbeat":
                progress = message.heartbeat.progress
                runner.note_progress(member, _bounded(progress))
                if progress.HasField("calls"):
                    job.calls.stand(member, progress.calls)
                member.say_taken(dict(progress.taken))
                mailbox.heard(message.heartbeat.heard)
            case "uploaded" if message.uploaded.final:
                runner.do(job.uploaded_final(member))
            case "uploaded" if message.uploaded.live:
                uploaded = message.uploaded
                self._live.uploaded(job.name, member, uploaded.step, begins=uploaded.begins)
            case "uploaded":
                runner.do(job.starts.uploaded(member, message.uploaded.table))
            case "cut_ready" | "cut_captured" | "holding" as kind:
                self._hold(kind, message, job.name, member)
            case "finish":
                runner.note_progress(member, _bounded(message.finish.progress))
                member.say_steps(message.finish.progress.step)
                runner.do(job.finish(member))
                runner.events.record(Event.FINISH, member, membership_epoch=job.phase.membership_epoch)
                self._leases.gone(job.name, member)
            case "leave":
                runner.note_progress(member, _bounded(message.leave.progress))
                member.say_steps(message.leave.progress.step)
                reason = one_line(message.leave.reason, MAX_MEMBER_TEXT)
                torn = message.leave.torn
                runner.do(job.leave(member, reason, steps_by_table(message.leave.clocks), torn=torn))
                event = Event.DRAIN if message.leave.drained else Event.LEAVE
                runner.events.record(
                    event, member, membership_epoch=job.phase.membership_epoch, detail=reason or "done"
                )
                self._leases.gone(job.name, member)
            case kind:
                raise FrameMalformed(f"a member's stream does not take {kind!r} here")

    def _hold(self, kind: str, message: pb.MemberRequest, job: str, member: Member) -> None:
        """Passes on what a member says that is asked to wait between two steps."""
        if kind == "cut_ready":
            ready = message.cut_ready
            self._scheduler.ready(job, member, ready.number, steps_by_table(ready.steps))
        elif kind == "cut_captured":
            self._scheduler.captured(job, member, message.cut_captured)
        else:
            holding = message.holding
            steps = steps_by_table(holding.steps)
            self._late_joins.holding(job, member, holding.number, steps, held=holding.held)

    def _gone(self, runner: JobRunner, member: Member) -> None:
        """A member has heard its last word: if that was not its own wish, it is out at once."""
        if runner.job.roster.members.get(member.worker) is member and member.present:
            runner.do(runner.job.lost(member))
        self._leases.gone(runner.job.name, member)


def worker_status(runner: JobRunner, member: Member, now_s: float) -> pb.WorkerStatus:
    """A member, for people."""
    running = runner.job.state is JobState.RUNNING and member.state is not MemberState.JOINING
    left_s = runner.leases.left_s(member.worker, member.incarnation, now_s)
    return pb.WorkerStatus(
        worker=member.worker,
        incarnation=member.incarnation,
        host=member.host,
        pid=member.pid,
        state="running" if running and member.trains else member.state.value,
        progress=runner.progress.get(member.worker, pb.Progress()),
        heartbeat_age_s=now_s - runner.heard_s.get(member.worker, now_s),
        lease_left_s=-1.0 if left_s is None else max(left_s, 0.0),
    )


def _ranks_of(join: pb.Join) -> int:
    if join.ranks > MAX_SIZE:
        raise UsageError(f"a group has at most {MAX_SIZE} ranks, got {join.ranks}")
    return max(join.ranks, 1)


def _newcomer(join: pb.Join) -> str:
    """How people are told who wanted to come."""
    name = f"worker {join.worker}" if join.HasField("worker") else "a worker"
    return f"{name} (host {one_line(join.host, MAX_HOST)}, pid {join.pid})"


def _refused_by(bug: Exception) -> pb.MemberReply:
    """The error of a worker whose messages nobody takes any more."""
    return pb.MemberReply(refused=refused_to_proto(InternalError.of(bug)))


def _table_of(message: pb.MakeTable, known: list[TableSpec]) -> TableSpec:
    """The table that a worker makes: the very one that others have made, if it is the same."""
    check_pairs(message.table)
    spec = table_from_proto(message.table)
    same = spec.number < len(known) and known[spec.number] == spec
    return known[spec.number] if same else spec


def _leaves(message: pb.MemberRequest) -> bool:
    return bool(message.WhichOneof("kind") == "leave")


def _bounded(progress: pb.Progress) -> pb.Progress:
    """A worker's progress with a bounded number of metrics and tables, and short, printable texts."""
    for name in [name for name in progress.metrics if len(name) > 64 or not name.isprintable()]:
        del progress.metrics[name]
    for name in sorted(progress.metrics)[MAX_METRICS:]:
        del progress.metrics[name]
    for table in sorted(progress.taken)[MAX_TABLES:]:
        del progress.taken[table]
    progress.waits = one_line(progress.waits, MAX_MEMBER_TEXT)
    progress.passed_over = one_line(progress.passed_over, MAX_MEMBER_TEXT)
    return progress
