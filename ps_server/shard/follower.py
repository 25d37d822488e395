"""A shard above 0 follows the coordinator: it registers and carries orders out, for as long as it lives."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import grpc.aio

from ps_server.agreement.messages import UNANSWERED, Report, job_of, report_to_request
from ps_server.lanes import Lanes
from ps_server.log import logger
from ps_server.shard.hand_off import Inherited
from ps_server.shard.orders import execute_order
from ps_server.shard.shard import Shard
from ps_wire.access.access import OPEN, Access
from ps_wire.access.channel import dial_async
from ps_wire.access.status import error_of
from ps_wire.access.tls_diagnosis import diagnose
from ps_wire.errors import Fenced, ProtocolMismatch, PsError, ShardMismatch
from ps_wire.frames.frame import PROTOCOL
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import coordinator_pb2_grpc as rpc

RETRY_S = 0.5
MISPLACED = (ShardMismatch, ProtocolMismatch)  # coming again does not help
KEPT_ANSWERS = 4096  # four for each job that a service has; one that comes again is of those not answered yet


class Follower:
    """A shard's end of the stream of orders. Orders of one job are carried out in turn, jobs side by side.

    `_lock` guards `done` while orders are carried out; nothing else is taken under it.

    Attributes:
        address: the coordinator's; its name is resolved again at every connection.
        done: the last answers to orders, by number.
        coordinator: the newest generation of a coordinator that was followed.
    """

    def __init__(
        self,
        shard: Shard,
        *,
        address: str,
        advertise: str,
        inherited: Inherited,
        on_ready: Callable[[bool], None],
        on_fenced: Callable[[Fenced], None],
        on_misplaced: Callable[[PsError], None],
        access: Access = OPEN,
    ) -> None:
        self.address = address
        self._access = access
        self._shard = shard
        self._on_ready = on_ready
        self._on_fenced = on_fenced
        self._on_misplaced = on_misplaced
        self._lanes = Lanes()
        self._lock = threading.Lock()
        self._drained = False
        done = [pb.OrderDone.FromString(bytes.fromhex(text)) for text in inherited.more.get("done", ())]
        self.done: dict[int, pb.OrderDone] = {it.number: it for it in done}
        self._advertise = advertise
        self._boot = inherited.boot
        self.coordinator = inherited.coordinator

    async def run(self) -> None:
        """Follows until cancelled; a broken stream is made again."""
        logged = ""
        while True:
            async with dial_async(self.address, self._access) as channel:
                reason = await self._follow_on(channel)
            await asyncio.sleep(RETRY_S)  # where all servers are stopped, this one ends here
            if reason != logged:
                level = logging.WARNING if self.coordinator else logging.INFO  # it may start after this one
                logger.log(level, "coordinator %s: %s; trying again", self.address, reason)
                logged = reason

    async def _follow_on(self, channel: grpc.aio.Channel) -> str:
        """Follows until the stream breaks; says why it did."""
        try:
            await self._follow(rpc.CoordinatorStub(channel))
            reason = "the coordinator ended the stream"
        except Fenced as error:
            reason = error.message
        except grpc.aio.AioRpcError as error:
            named = error_of(error, self.address)
            if isinstance(named, Fenced) and "coordinator" not in named.facts:  # else that one is, and ends
                self._on_fenced(named)
            if isinstance(named, MISPLACED):
                self._on_misplaced(named)
            refused = await asyncio.to_thread(diagnose, self.address, self._access.tls)
            reason = refused.message if refused is not None else f"{error.code().name}: {error.details()}"
        self._on_ready(False)
        return reason

    def register(self) -> pb.Register:
        """As which process this one comes to the coordinator, and of which generation what it holds is."""
        return pb.Register(
            protocol=PROTOCOL,
            shard=self._shard.index,
            num_shards=self._shard.num_shards,
            address=self._advertise,
            boot=self._boot,
            generation=self._shard.generation,
            coordinator=self.coordinator,
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    async def drain(self) -> None:
        """Returns once no order is being carried out; none is begun any more."""
        self._drained = True
        await self._settled()

    async def _settled(self) -> None:
        await asyncio.gather(*map(asyncio.wrap_future, self._lanes.pending()))

    def _execute(self, order: pb.Order) -> pb.OrderDone:
        """Carries an order out; one that came before, whose answer was lost with a stream, is answered."""
        with self._lock:
            known = self.done.get(order.number)
        if known is not None:
            return known
        done = execute_order(self._shard, order)
        with self._lock:
            self.done[order.number] = done
            while len(self.done) > KEPT_ANSWERS:
                del self.done[next(iter(self.done))]
        return done

    def _begin(self, granted: pb.Granted) -> None:
        if granted.coordinator < self.coordinator:
            raise Fenced(
                f"this coordinator is of generation {granted.coordinator}; shard {self._shard.index} has "
                f"followed one of {self.coordinator}"
            )
        self._shard.begin(granted.generation)
        self.coordinator = granted.coordinator

    async def _follow(self, stub: rpc.CoordinatorStub) -> None:
        answers: asyncio.Queue[pb.FollowRequest | None] = asyncio.Queue()
        answers.put_nowait(pb.FollowRequest(register=self.register()))

        async def outgoing() -> AsyncIterator[pb.FollowRequest]:
            while (answer := await answers.get()) is not None:
                yield answer

        call = stub.Follow(outgoing(), metadata=self._access.metadata)
        try:
            await call.wait_for_connection()
            await call.initial_metadata()
            self._report_to(answers)
            async for order in call:
                await self._receive(order, answers)
        finally:
            answers.put_nowait(None)
            call.cancel()

    def _report_to(self, answers: asyncio.Queue[pb.FollowRequest | None]) -> None:
        loop = asyncio.get_running_loop()

        def tell(report: Report) -> None:
            loop.call_soon_threadsafe(answers.put_nowait, report_to_request(report))

        self._shard.reports.connect(tell)

    async def _receive(self, order: pb.Order, answers: asyncio.Queue[pb.FollowRequest | None]) -> None:
        match order.WhichOneof("kind"):
            case "granted":  # the first one
                await self._settled()  # else what is void is carried out after it was dropped
                self._begin(order.granted)
                for report in self._shard.pending():  # or what became of it was lost with the stream before
                    self._shard.reports.send(report)
                self._on_ready(True)
            case "prove":
                answers.put_nowait(pb.FollowRequest(done=pb.OrderDone(number=order.number)))
            case "decide":  # waits for no other order, and nobody for its answer; others close the step
                execute_order(self._shard, order)
            case _ if self._drained:
                pass  # it comes again, to the successor
            case kind if kind in UNANSWERED:
                self._lanes.submit(job_of(order), partial(execute_order, self._shard, order))
            case _:
                loop = asyncio.get_running_loop()

                def answer(carried_out: Future[pb.OrderDone]) -> None:
                    with suppress(RuntimeError):  # the process ends
                        done = pb.FollowRequest(done=carried_out.result())
                        loop.call_soon_threadsafe(answers.put_nowait, done)

                self._lanes.submit(job_of(order), partial(self._execute, order)).add_done_callback(answer)
