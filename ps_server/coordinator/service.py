"""The coordinator's gRPC service: streams of members, readers and following shards, and single calls.

Thin: what a member says is taken by `member_streams`, what a reader says by `readers`, what a shard says by
`orders`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial

import grpc.aio

from ps_server.agreement.messages import attendance_from_proto, norm_from_proto
from ps_server.coordinator import share_messages
from ps_server.coordinator.drops import Drops
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.jobs import member as members
from ps_server.coordinator.jobs.collectives import Part
from ps_server.coordinator.jobs.phase import JobState
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.live_extras import LiveExtras
from ps_server.coordinator.meetings import Guest, Held, Meetings
from ps_server.coordinator.member_streams import MemberStreams, worker_status
from ps_server.coordinator.readers import Readers
from ps_server.coordinator.recovery import Recovery
from ps_server.coordinator.snapshots.scheduler import SnapshotScheduler
from ps_server.coordinator.snapshots.taken import SnapshotFigures
from ps_server.coordinator.state_store import StateStore
from ps_server.log import logger
from ps_server.rpc import auth as gatekeeper
from ps_server.rpc import reply_size
from ps_server.rpc.first_message import first_message
from ps_wire.errors import ConfigurationRefused, Fenced, FrameMalformed, JobUnknown, PsError
from ps_wire.frames.frame import check_protocol
from ps_wire.frames.messages import epoch_use_to_proto, piece_to_proto, state_parts
from ps_wire.process import watched
from ps_wire.spec.address import check_job_name
from ps_wire.text import one_line
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import coordinator_pb2_grpc as rpc
from ps_wire.v1 import spec_pb2

MAX_ABSENT_SHOWN = 1024  # jobs that have snapshots, and nobody has come to
MAX_EPOCHS_SHOWN = 4
REGISTER_LIMIT_S = 10.0
MAX_STOP_REASON = 200  # characters, of who stops a job
MAX_TOLD = 1024  # workers of a job that was dropped, by name
COLLECT_S = 2.0  # that a call waits for other workers; then its worker looks after itself, and asks again
LOOK_S = 0.02  # then it asks the others where they are: they may wait for a step of one that waits here
LAST_LOOK_S = 0.5  # they are asked less and less often: a heartbeat costs 0.24 ms


class CoordinatorService(rpc.CoordinatorServicer):
    """The gRPC methods of the coordinator: each decodes, calls and encodes. Used on the event loop only."""

    def __init__(
        self,
        fleet: Fleet,
        runners: Mapping[str, JobRunner],
        states: StateStore,
        *,
        live: LiveExtras,
        member_streams: MemberStreams,
        readers: Readers,
        recovery: Recovery,
        scheduler: SnapshotScheduler,
        drops: Drops,
        on_fenced: Callable[[Fenced], None],
    ) -> None:
        """Takes the coordinator's parts; `on_fenced` hears of a newer coordinator."""
        self._fleet = fleet
        self._runners = runners
        self._states = states
        self._member_streams = member_streams
        self._readers = readers
        self._recovery = recovery
        self._scheduler = scheduler
        self._live = live
        self._drops = drops
        self._on_fenced = on_fenced
        self._meetings = Meetings()

    # -- streams ---------------------------------------------------------------------------------------

    async def Member(
        self, request_iterator: AsyncIterator[pb.MemberRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.MemberReply]:
        """A worker's stream."""
        async with aclosing(self._member_streams.serve(request_iterator)) as replies:
            async for reply in replies:
                yield reply

    async def Read(
        self, request_iterator: AsyncIterator[pb.ReadRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ReadReply]:
        """A reader's stream."""
        async with aclosing(self._readers.serve(request_iterator)) as replies:
            async for reply in replies:
                yield reply

    async def Follow(
        self, request_iterator: AsyncIterator[pb.FollowRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.Order]:
        """A shard above 0 registers, then carries orders out."""
        try:
            gatekeeper.check_service("be a shard")
            first = await first_message(anext(aiter(request_iterator)), REGISTER_LIMIT_S)
        except StopAsyncIteration:
            raise FrameMalformed("a shard's stream starts with register") from None
        register = first.register
        try:
            await self._fleet.check_held(register)
            outbox, lost = self._fleet.register(register)
        except PsError as error:
            if isinstance(error, Fenced) and error.facts.get("coordinator"):
                self._on_fenced(error)
            raise
        if lost:
            self._recovery.lost(register.shard)
        await context.send_initial_metadata(())  # tells the shard that it is registered
        reading = watched.task(
            f"reading what shard {register.shard} says",
            self._read_follower(request_iterator, register.shard, outbox),
            log=logger,
            failed=lambda _: outbox.put_nowait(None),  # it follows again
        )
        try:
            while (order := await outbox.get()) is not None:
                yield order
        finally:
            reading.cancel()
            self._fleet.unregister(register.shard, outbox)

    async def _read_follower(
        self,
        messages: AsyncIterator[pb.FollowRequest],
        shard: int,
        outbox: asyncio.Queue[pb.Order | None],
    ) -> None:
        try:
            async for message in messages:
                if message.WhichOneof("kind") == "norm":
                    self._fleet.reported(shard, norm_from_proto(message.norm))
                elif message.WhichOneof("kind") == "attendance":
                    self._fleet.reported(shard, attendance_from_proto(message.attendance))
                else:
                    self._fleet.answered(shard, message.done)
        except (grpc.aio.AioRpcError, FrameMalformed) as error:
            logger.debug("shard %d: stream broke: %s", shard, error)
        outbox.put_nowait(None)

    # -- state -----------------------------------------------------------------------------------------

    async def PutState(
        self, request_iterator: AsyncIterator[pb.StateChunk], context: grpc.aio.ServicerContext
    ) -> pb.PutStateReply:
        """A member puts state, in chunks; kept once it is whole."""
        chunks = aiter(request_iterator)
        first = await anext(chunks, None)
        if first is None:
            raise FrameMalformed("a state without chunks")
        key = first.key
        self._check_member(key)
        size = first.size if first.HasField("size") else None
        with self._states.arriving(key.job, key.name[:64], key.worker, size) as receive:
            receive(first.data)
            async for chunk in chunks:
                receive(chunk.data)
        return pb.PutStateReply()

    async def GetState(
        self, request: pb.GetStateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.StateChunk]:
        """A member gets state, in chunks; with `at_least` it waits for it, as long as its call may take."""
        key = request.key
        self._check_member(key)
        if key.name in ("live", "noted"):
            async for chunk in self._position(key):
                yield chunk
            return
        while request.HasField("at_least") and not self._states.reached(key.job, key.name, request.at_least):
            await self._states.change(key.job)
            self._check_member(key)
        blob = self._states.get(key.job, key.name)
        for part in state_parts(blob):
            yield pb.StateChunk(data=part)

    async def _position(self, key: pb.StateKey) -> AsyncIterator[pb.StateChunk]:
        runner, live = self._runners[key.job], self._live
        joiner = runner.job.roster.member(key.worker, key.incarnation)
        noted = live.noted(runner, joiner) if key.name == "noted" else await live.for_joiner(runner, joiner)
        yield pb.StateChunk(clocks=noted.clocks)
        for part in state_parts(noted.blob):
            yield pb.StateChunk(data=part)

    def _check_member(self, key: pb.StateKey) -> None:
        self._member(key.job, key.worker, key.incarnation)

    def _known(self, job: str) -> JobRunner:
        """The job that a person means."""
        gatekeeper.check_job(job)
        runner = self._runners.get(job)
        if runner is None:
            raise JobUnknown(f"there is no job {job[:64]!r} to stop: ps-lab status lists them", job=job[:64])
        if runner.job.state is JobState.ENDED:
            raise ConfigurationRefused(f"job {job} has ended already: ps-lab job drop frees what it holds")
        return runner

    def _member(self, job: str, worker: int, incarnation: int) -> tuple[JobRunner, members.Member]:
        gatekeeper.check_job(job)
        if (gone := self._drops.over(job, incarnation)) is not None:
            raise gone
        runner = self._runners.get(job)
        if runner is None:
            self._recovery.check(job)
            raise JobUnknown(f"no job {job[:64]!r} here")
        if (over := runner.job.over(worker, incarnation)) is not None:
            raise over
        return runner, runner.job.roster.member(worker, incarnation)

    async def Share(self, request: pb.ShareRequest, context: grpc.aio.ServicerContext) -> pb.ShareReply:
        """Answers what of an epoch of a loader a worker hands out next."""
        runner, member = self._member(request.job, request.worker, request.incarnation)
        loader, shares = share_messages.check_loader(request.loader), runner.job.epochs
        shares.agreed.check(loader, member.worker, request.data)
        if differs := shares.agreed.compare(loader, member.worker, request.sums):
            runner.do(runner.job.tell_here(differs))
        if request.begins and shares.trains(loader) and not runner.job.loops.begin(request.epoch):
            return pb.ShareReply()  # the job was stopped
        samples = share_messages.check_samples(request.samples)
        marks = [share_messages.check_mark(mark) for mark in (request.mark, request.rest)]
        piece = shares.once(
            loader,
            member.worker,
            member.incarnation,
            request.request,
            lambda: shares.ask(
                loader,
                share_messages.check_epoch(request.epoch),
                member.worker,
                member.incarnation,
                runner.job.sharing(member.ranks, samples),
                ranks=member.ranks,
                begins=request.begins,
                samples=samples,
                mark=marks[0],
                rest=marks[1],
            ),
        )
        runner.say_epochs()
        return pb.ShareReply(
            piece=None if piece is None else piece_to_proto(piece),
            newest=shares.is_newest(loader, request.epoch),
        )

    async def Use(self, request: pb.UseRequest, context: grpc.aio.ServicerContext) -> pb.UseReply:
        """How far a worker has come in what it hands out."""
        runner, member = self._member(request.job, request.worker, request.incarnation)
        loader = share_messages.check_loader(request.loader)
        epochs, who = runner.job.epochs, (loader, member.worker, member.incarnation)
        if request.HasField("mark"):
            epochs.mark(*who, share_messages.check_mark(request.mark))
        else:
            epochs.skip(*who, share_messages.check_samples(request.skipped))
        return pb.UseReply()

    async def BeginEpoch(self, request: pb.EpochRequest, context: grpc.aio.ServicerContext) -> pb.EpochReply:
        """Whether a worker is to begin an epoch of its loop."""
        runner, member = self._member(request.job, request.worker, request.incarnation)
        if differs := runner.job.epochs.agreed.compare_loop(request.loop, member.worker, request.stop):
            runner.do(runner.job.tell_here(differs))
        if runner.job.loops.begin(request.epoch):
            return pb.EpochReply()
        return pb.EpochReply(last=runner.job.loops.last, why=runner.job.loops.stopped)

    async def StopJob(self, request: pb.StopRequest, context: grpc.aio.ServicerContext) -> pb.EpochReply:
        """The job ends, for all workers after the same epoch."""
        reason = one_line(request.reason, MAX_STOP_REASON)
        if request.incarnation:
            runner, member = self._member(request.job, request.worker, request.incarnation)
            runner.do(runner.job.stop(member, reason))
        else:
            runner = self._known(request.job)
            runner.do(runner.job.stop(None, reason))
        loops = runner.job.loops
        last = max(loops.newest, 0) if loops.last is None else loops.last
        return pb.EpochReply(last=last, why=loops.stopped or "the job has ended already")

    async def Collect(self, request: pb.CollectRequest, context: grpc.aio.ServicerContext) -> pb.CollectReply:
        """A call that all workers make together; waits for the others for a while."""
        runner, member = self._member(request.job, request.worker, request.incarnation)
        if not request.HasField("number"):
            return pb.CollectReply(number=runner.job.calls.collectives.next_open)
        if member.reader or member.state is not members.MemberState.JOINED:
            raise ConfigurationRefused(f"worker {member.worker} has finished or reads: it makes no such call")
        part = Part(
            form=request.form,
            op=request.op,
            source=request.source,
            values=tuple(request.values),
            blob=request.blob,
            begun=request.begun,
        )
        number, job = request.number, runner.job
        made = job.calls.collectives.repeat(number, member.worker, member.incarnation)
        if made is None:
            job.calls.collectives.bring(number, member.worker, member.incarnation, part)
            made = job.calls.settle(number)
            if made is not None:
                runner.wake()
        until_s, pause_s = time.monotonic() + COLLECT_S, LOOK_S
        steps: Mapping[int, int] = {}
        while made is None and not steps and time.monotonic() < until_s:
            if self._runners.get(job.name) is not runner or runner.job is not job:
                break
            runner.ask(job.calls.elsewhere() if request.clocks else (), pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await runner.changed()
            pause_s = min(2 * pause_s, LAST_LOOK_S)
            made = job.calls.settle(number)
            steps = job.calls.needed(member, request.clocks)
        if made is None:
            return pb.CollectReply(number=number, missing=job.calls.missing(number), steps=steps)
        made.check(number, part)
        return pb.CollectReply(number=number, done=True, values=made.values, blob=made.blob)

    async def Meet(self, request: pb.MeetRequest, context: grpc.aio.ServicerContext) -> pb.MeetReply:
        """A rank of a group looks for the others; waits for them for a while."""
        gatekeeper.check_job(request.job)
        check_protocol(request.protocol)
        guest = Guest(
            rank=request.rank,
            size=request.size,
            host=request.host,
            machine=request.machine,
            process=request.process,
            address=request.address,
        )
        held = partial(self._held, check_job_name(request.job), request.worker)
        meeting = await self._meetings.meet(request.job, request.worker, guest, held=held)
        if not meeting.complete.is_set():
            return pb.MeetReply(missing=meeting.missing(held()))
        guests = meeting.guests
        return pb.MeetReply(
            complete=True,
            address=guests[0].address,
            hosts=[guest.host for guest in guests],
            machines=[guest.machine for guest in guests],
        )

    def _held(self, job: str, worker: int) -> Held | None:
        """Who has that number of a worker."""
        runner = self._runners.get(job)
        for member in () if runner is None else runner.job.roster.holders(worker):
            return Held(holder=member.holder, lease_s=member.lease_s)
        return None

    async def Snapshot(
        self, request: pb.SnapshotRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.SnapshotProgress]:
        """Takes a snapshot; the last word says where it is."""
        gatekeeper.check_job(request.job)
        async for progress in self._scheduler.take(request.job):
            yield progress

    async def NameSnapshot(
        self, request: pb.SnapshotRequest, context: grpc.aio.ServicerContext
    ) -> pb.SnapshotProgress:
        """A name for a snapshot of the job that comes from elsewhere."""
        gatekeeper.check_job(request.job)
        name = await self._scheduler.name_to_bring(check_job_name(request.job))
        return pb.SnapshotProgress(snapshot=name)

    async def Restore(
        self, request: pb.RestoreRequest, context: grpc.aio.ServicerContext
    ) -> pb.SnapshotProgress:
        """A job goes back to a snapshot that was brought here."""
        gatekeeper.check_job(request.job)
        step = await self._recovery.go_back(check_job_name(request.job), request.snapshot)
        return pb.SnapshotProgress(phase="done", snapshot=request.snapshot, step=step)

    async def Drop(self, request: pb.DropRequest, context: grpc.aio.ServicerContext) -> pb.DropReply:
        """A job is forgotten: its name begins anew."""
        gatekeeper.check_job(request.job)
        dropped = await self._drops.drop(check_job_name(request.job), force=request.force)
        return pb.DropReply(
            state=dropped.state,
            workers=dropped.workers[:MAX_TOLD],
            readers=dropped.readers,
            tables=dropped.tables,
            snapshots=dropped.snapshots,
            where=dropped.where,
        )

    # -- status ----------------------------------------------------------------------------------------

    async def Status(self, request: pb.StatusRequest, context: grpc.aio.ServicerContext) -> pb.StatusReply:
        """All jobs with their workers."""
        jobs = [self._job_status(runner) for name, runner in self._runners.items() if gatekeeper.sees(name)]
        absent = [(name, state) for name, state in self._recovery.absent.items() if gatekeeper.sees(name)]
        for name, state in absent[:MAX_ABSENT_SHOWN]:
            jobs.append(pb.JobStatus(job=spec_pb2.Job(name=name), state=state))
        reply_size.cut(jobs)
        return pb.StatusReply(num_shards=self._fleet.num_shards, shards=self._fleet.addresses, jobs=jobs)

    def _job_status(self, runner: JobRunner) -> pb.JobStatus:
        now_s = time.monotonic()
        job = runner.job
        snapshot = self._scheduler.figures(job.name)
        clocks = {worker: progress.step for worker, progress in runner.progress.items()}
        return pb.JobStatus(
            job=job.spec,
            state=job.state.value,
            num_tables=job.num_tables,
            epoch=job.phase.membership_epoch,
            events=runner.events.counts,
            happened=runner.events.last,
            snapshot=None if snapshot is None else _snapshot_to_proto(snapshot),
            epochs=[epoch_use_to_proto(use) for use in job.epochs.uses(clocks, MAX_EPOCHS_SHOWN)],
            workers=[
                worker_status(runner, member, now_s) for _, member in sorted(job.roster.members.items())
            ],
        )


def _snapshot_to_proto(snapshot: SnapshotFigures) -> pb.SnapshotStatus:
    return pb.SnapshotStatus(
        age_s=snapshot.age_s,
        step=snapshot.step,
        duration_s=snapshot.duration_s,
        bytes=snapshot.nbytes,
    )
