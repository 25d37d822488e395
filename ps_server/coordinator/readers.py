"""Readers of a job: those who take consistent cuts of its tables and are no members of it.

A reader has a stream to the coordinator as long as it is there, and connections to the shards under a number
that no worker has. One cut of a job at a time: hold on all shards, arm on all shards, end: see
`shard.partition.cut`. Whatever happens, an end follows within `CUT_LIMIT_S`. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress

import grpc.aio

from ps_server.agreement.cut_points import clocks_of_cut
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.jobs.phase import JobState
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.live_extras import LiveExtras
from ps_server.log import logger
from ps_server.rpc import auth as gatekeeper
from ps_server.rpc.first_message import first_message
from ps_wire.errors import (
    ConfigurationRefused,
    FrameMalformed,
    FrameTooLarge,
    InternalError,
    JobUnknown,
    PsError,
)
from ps_wire.frames.frame import FIRST_READER, check_protocol
from ps_wire.frames.messages import refused_to_proto, state_parts, table_to_proto
from ps_wire.process import watched
from ps_wire.text import one_line
from ps_wire.v1 import coordinator_pb2 as pb

MAX_READERS = 256  # with one token: who has that of one job keeps no reader from another
MAX_REQUESTS = 4  # of one reader that wait; then its stream is not read
JOIN_LIMIT_S = 10.0
CUT_LIMIT_S = 10.0
LIVE_LIMIT_S = 10.0  # for a worker's next step


class Readers:
    """The readers of all jobs, each with a number of its own."""

    def __init__(
        self,
        fleet: Fleet,
        runners: Mapping[str, JobRunner],
        live: LiveExtras,
        *,
        on_join: Callable[[str], None],
    ) -> None:
        """Nobody reads yet; `on_join` hears of a reader of a job that is not here, and may refuse it."""
        self._fleet = fleet
        self._runners = runners
        self._live = live
        self._on_join = on_join
        self._numbers = itertools.count(FIRST_READER)
        self._talking: dict[asyncio.Task[None], _Reader] = {}

    def dismiss(self, job: str, why: PsError) -> int:
        """The job is no more: its readers hear why, as their last word; returns how many there are."""
        its = [reader for reader in self._talking.values() if reader.reads(job)]
        for reader in its:
            reader.dismiss(why)
        return len(its)

    async def serve(self, messages: AsyncIterator[pb.ReadRequest]) -> AsyncGenerator[pb.ReadReply]:
        """A reader's stream, to its end."""
        bound_to = gatekeeper.bound_to()
        if sum(it.bound_to == bound_to for it in self._talking.values()) >= MAX_READERS:
            whose = "this service" if bound_to is None else f"job {bound_to}"
            error = ConfigurationRefused(f"{whose} has {MAX_READERS} readers already")
            yield pb.ReadReply(refused=refused_to_proto(error))
            return
        number = next(self._numbers)
        reader = _Reader(self._fleet, self._runners, self._live, number, self._on_join, bound_to)
        talking = watched.task(
            "serving a reader", reader.talk(messages), log=logger, failed=lambda _: reader.give_up()
        )
        self._talking[talking] = reader
        talking.add_done_callback(self._talking.pop)
        try:
            while (reply := await reader.replies.get()) is not None:
                yield reply
        finally:
            reader.end()


class _Reader:
    """One reader: a task beside its stream's, which is never cancelled, so that what it began it also ends.

    Each of its waits has a limit, but that for the next request; `end` is one, too.

    Attributes:
        bound_to: the job whose token it came with; None: it may read all jobs.
    """

    def __init__(
        self,
        fleet: Fleet,
        runners: Mapping[str, JobRunner],
        live: LiveExtras,
        number: int,
        on_join: Callable[[str], None],
        bound_to: str | None,
    ) -> None:
        self.bound_to = bound_to
        self.replies: asyncio.Queue[pb.ReadReply | None] = asyncio.Queue(1)
        self._fleet = fleet
        self._runners = runners
        self._live = live
        self._number = number
        self._on_join = on_join
        self._job = ""
        self._request = 0
        self._over = False
        self._dismissed: PsError | None = None
        self._inbox: asyncio.Queue[pb.ReadRequest | None] = asyncio.Queue(MAX_REQUESTS)

    async def talk(self, messages: AsyncIterator[pb.ReadRequest]) -> None:
        """Until the stream ends; the last reply is None."""
        reading = watched.task(
            "reading a reader's stream", self._read(messages), log=logger, failed=lambda _: self._end_inbox()
        )
        try:
            await self._join()
            while (request := await self._inbox.get()) is not None:
                self._request = request.number
                try:
                    await self._answer(request)
                except FrameMalformed:
                    raise
                except PsError as error:  # it may ask something else
                    if self._dismissed is None:
                        await self._reply(refused=refused_to_proto(error))
            if self._dismissed is not None:
                self._request = 0  # whatever it has asked
                await self._reply(refused=refused_to_proto(self._dismissed))
        except PsError as error:
            level = logging.DEBUG if error.retryable or isinstance(error, JobUnknown) else logging.WARNING
            self._fleet.own.complaints.say(level, "a reader", "refused: %s", error)
            await self._reply(refused=refused_to_proto(error))
        except Exception as error:  # noqa: BLE001 - our bug: the reader must hear of it, not wait for ever
            logger.exception("bug while serving a reader")
            await self._reply(refused=refused_to_proto(InternalError.of(error)))
        finally:
            reading.cancel()
            if self._job:
                remove = pb.RemoveMember(job=self._job, worker=self._number, incarnation=1)
                with suppress(PsError):  # the job is gone, or a shard is: so is its reader
                    await self._fleet.order(pb.Order(remove=remove), absent_ok=True)
        if not self._over:
            await self.replies.put(None)

    async def _read(self, messages: AsyncIterator[pb.ReadRequest]) -> None:
        try:
            async for message in messages:
                await self._inbox.put(message)
        except (grpc.aio.AioRpcError, FrameMalformed, FrameTooLarge) as error:
            logger.debug("a reader's stream broke: %s", error)
        self._end_inbox()

    def end(self) -> None:
        """The stream is over: nothing more can be said or asked."""
        self._over = True
        self._end_inbox()
        if not self.replies.empty():
            self.replies.get_nowait()  # for who waits to put one

    def reads(self, job: str) -> bool:
        """Whether it has joined that job, or is about to."""
        return self._job == job

    def dismiss(self, why: PsError) -> None:
        """The job is no more: nothing more is asked, and `why` is the last word."""
        self._dismissed = why
        self._end_inbox()

    def give_up(self) -> None:
        """Nobody serves it any more: its stream ends."""
        self.end()
        self.replies.put_nowait(None)

    def _end_inbox(self) -> None:
        if self._inbox.full():  # of what is not taken by now, nobody wants to hear
            self._inbox.get_nowait()
        self._inbox.put_nowait(None)

    async def _reply(self, **reply: object) -> None:
        if not self._over:
            await self.replies.put(pb.ReadReply(number=self._request, **reply))  # type: ignore[arg-type]

    async def _join(self) -> None:
        first = await first_message(self._inbox.get(), JOIN_LIMIT_S)
        if first is None or first.WhichOneof("kind") != "join":
            raise FrameMalformed("a reader's stream starts with a join")
        self._request, join = first.number, first.join
        check_protocol(join.protocol)
        self._fleet.check_ready()
        gatekeeper.check_job(join.job)
        if join.job not in self._runners:
            self._on_join(join.job)
        job = self._runner(join.job).job
        self._job = job.name
        admit = pb.AdmitMember(job=job.spec, worker=self._number, incarnation=1, reader=True)
        await self._fleet.order(pb.Order(admit=admit))
        index = self._number - FIRST_READER
        host = one_line(join.host, 255)
        logger.info("job %s: reader %d (host %s, pid %d) joins", job.name, index, host, join.pid)
        await self._reply(joined=pb.Joined(worker=self._number, incarnation=1))

    async def _answer(self, request: pb.ReadRequest) -> None:
        match request.WhichOneof("kind"):
            case "table":
                spec = self._fleet.own.started_spec(self._job, request.table)
                await self._reply(table=table_to_proto(spec))
            case "cut":
                cut = pb.Cut(job=self._job, table=request.cut, reader=self._number, number=request.number)
                if not await self._cut(cut):
                    await self._reply(later=pb.Later())
            case "state":
                await self._state(request.state)
            case "done":  # of a cut that has ended meanwhile
                pass
            case kind:
                raise FrameMalformed(f"a reader's stream does not take {kind!r} here")

    # -- cuts ------------------------------------------------------------------------------------------

    async def _cut(self, cut: pb.Cut) -> bool:
        """One cut; whether every partition has been sent."""
        runner = self._runner(cut.job)
        cut.ended = runner.job.state is JobState.ENDED  # before the cut: so it has all pushes
        lock = runner.cutting
        try:
            async with asyncio.timeout(CUT_LIMIT_S):
                await lock.acquire()
        except TimeoutError:
            return False
        try:
            return await self._hold(cut, runner)
        finally:
            lock.release()

    async def _hold(self, cut: pb.Cut, runner: JobRunner) -> bool:
        """From the hold to the end; the reader says `done` in between."""
        holding = asyncio.create_task(self._fleet.order(pb.Order(hold_cut=cut)))
        unsent: dict[int, int] = {cut.table: 1}
        try:
            async with asyncio.timeout(CUT_LIMIT_S):
                cut.clocks.update(clocks_of_cut(runner.job.gate.aggregates, await asyncio.shield(holding)))
                await self._fleet.order(pb.Order(arm_cut=cut))
                await self._reply(cut=cut)
                await self._done(cut.number)
        except TimeoutError:
            pass
        finally:
            await asyncio.gather(holding, return_exceptions=True)  # else it might come after the end
            with suppress(PsError):  # a shard that does not hear of it gives up by itself
                unsent = await self._fleet.order(pb.Order(end_cut=cut), absent_ok=True)
        return not unsent.get(cut.table)

    async def _done(self, number: int) -> None:
        """Waits until the reader says so, or has gone."""
        while (message := await self._inbox.get()) is not None:
            if message.WhichOneof("kind") != "done":
                raise FrameMalformed("a reader says `done` before it asks again")
            if message.done == number:
                return
        self._end_inbox()

    # -- what lies outside tables ----------------------------------------------------------------------

    async def _state(self, table: int) -> None:
        try:
            async with asyncio.timeout(LIVE_LIMIT_S):
                outside = await self._live.get(self._runner(self._job), table)
        except TimeoutError:
            await self._reply(later=pb.Later())
            return
        said = 0
        for part in state_parts(outside.blob):
            said += len(part)
            chunk = pb.OutsideState(data=part, last=said == len(outside.blob), step=outside.step)
            chunk.origin = outside.origin
            await self._reply(state=chunk)

    def _runner(self, name: str) -> JobRunner:
        runner = self._runners.get(name)
        if runner is None:
            raise JobUnknown(f"no job {name[:64]!r} here: a reader comes after the workers", job=name[:64])
        return runner
