"""The shards as one: orders go to all of them, what they report is answered.

It must not know how an order is carried out.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from ps_server.agreement.messages import Report, job_of
from ps_server.coordinator.fleet.ballots import FIRST_ROUNDS, SECOND_ROUNDS, Ballots, Decision
from ps_server.coordinator.fleet.following import Answered, FollowerStream
from ps_server.coordinator.fleet.generations import Generations
from ps_server.coordinator.fleet.own_shard import OwnShard
from ps_server.coordinator.fleet.registry import ShardRegistry
from ps_server.lanes import Lanes
from ps_server.log import logger
from ps_wire.errors import Fenced, PsError, ServerNotReady, ShardMismatch
from ps_wire.frames.frame import check_protocol
from ps_wire.frames.messages import refused_from_proto, refused_to_proto, table_from_proto
from ps_wire.process import watched
from ps_wire.spec.table import TableSpec
from ps_wire.text import one_line
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

RESTART_LIMIT_S = 30.0  # for a shard to come back, where nobody's training depends on it
PROVE_LIMIT_S = 5.0  # for a shard to say that it is alive: its event loop only moves bytes
RETURN_LIMIT_S = 3.0  # for a holder that the coordinator before knew: it tries twice a second
LOST_AFTER_S = 1.0  # a shard that is gone is said to be: where all servers are stopped, this one is by then
MAX_HOST = 255  # characters
ORDER_LIMIT_S = 60.0  # allocating a slice is the longest that an order takes


_Sent: TypeAlias = tuple[FollowerStream, Answered]
_Limit: TypeAlias = float | None  # seconds


class Fleet:
    """All shards, as the coordinator reaches them. Used on the event loop only.

    Attributes:
        beside: threads for what a job asks the coordinator for beside orders: one thing of a job at a time.
    """

    def __init__(
        self,
        own: OwnShard,
        address: str,
        loop: asyncio.AbstractEventLoop,
        generations: Generations,
        pool: Executor | None = None,
    ) -> None:
        """Takes shard 0, its generations, and the threads that carry its orders out (default: its own)."""
        self.num_shards = own.num_shards
        self._own = own
        self._address = address
        self._registered: dict[int, FollowerStream] = {}
        self.registry = ShardRegistry(generations)
        self._awaited: dict[int, asyncio.Event] = {}  # shards that the coordinator before this one knew
        self._complete = asyncio.Event()
        if self.num_shards == 1:
            self._complete.set()
        self._numbers = itertools.count(secrets.randbits(48))  # no coordinator before had the same
        self._ballots = Ballots(own.num_shards)
        self._loop = loop
        # Shard 0, too, carries a job's orders out in the order in which they are sent.
        self._lanes, self.beside = Lanes(pool), Lanes(pool)
        self._keeps_places = False
        self._drained = False
        self._closed = False
        own.report_to(self._take_own)

    @property
    def own(self) -> OwnShard:
        """Shard 0, in this process."""
        return self._own

    @property
    def places(self) -> list[pb.ShardPlace]:
        """Where each shard is, and its generation, by shard."""
        known = self.registry.known
        generations = [self._own.generation, *(known.get(i, (b"", 0))[1] for i in range(1, self.num_shards))]
        return [
            pb.ShardPlace(address=address, generation=generation)
            for address, generation in zip(self.addresses, generations, strict=True)
        ]

    @property
    def addresses(self) -> list[str]:
        """Advertised addresses by shard; empty where one is not registered."""
        above = [self._registered.get(index) for index in range(1, self.num_shards)]
        return [self._address, *(entry.address if entry is not None else "" for entry in above)]

    def check_ready(self) -> None:
        """Refuses while shards are missing.

        Raises:
            ServerNotReady: naming them.
        """
        missing = [str(index) for index, address in enumerate(self.addresses) if not address]
        if missing:
            raise ServerNotReady(
                f"of {self.num_shards} shards, not registered with the coordinator yet: {', '.join(missing)}"
            )

    async def wait_complete(self, limit_s: float | None = RESTART_LIMIT_S) -> None:
        """Waits until all shards follow.

        Raises:
            ServerNotReady: naming those who do not within the limit.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._complete.wait()
        self.check_ready()

    async def check_held(self, message: pb.Register) -> None:
        """Refuses a process that comes as a shard which another one holds, and that one is alive.

        The holder is asked over its stream. One whose stream has ended, or that does not answer within
        `PROVE_LIMIT_S`, gives way to who comes. One that the coordinator before this one knew, and that has
        not come yet, is waited for, once, for `RETURN_LIMIT_S`.

        Raises:
            ProtocolMismatch: another version.
            ShardMismatch: a number or count that does not fit: then it holds nothing here.
            Fenced: naming the holder's host and pid.
        """
        self._check_place(message)
        while True:
            entry = self._registered.get(message.shard)
            boot, generation = self.registry.known.get(message.shard, (message.boot, 0))
            older = 0 < message.generation < generation  # `register` says what has become of it
            if boot == message.boot or older:
                return
            if entry is None:
                if not await self._returns(message.shard):
                    return
                continue
            order = pb.Order(number=next(self._numbers), prove=pb.Prove())
            alive = False
            with suppress(TimeoutError):
                async with asyncio.timeout(PROVE_LIMIT_S):
                    alive = await entry.send(order) is not None
            entry.waiting.pop(order.number, None)
            if alive:
                raise Fenced(
                    f"shard {message.shard} is held by a process that is alive (host {entry.holder}, at "
                    f"{entry.address}): this one stops. To replace that one, stop it first",
                    shard=message.shard,
                )
            if self._registered.get(message.shard) is entry:
                return

    async def _returns(self, shard: int) -> bool:
        """Whether a holder that has not come to this coordinator yet does."""
        awaited = self._awaited.get(shard)
        if awaited is None:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(RETURN_LIMIT_S):
                await awaited.wait()
        self._awaited.pop(shard, None)
        return awaited.is_set()

    def _check_place(self, message: pb.Register) -> None:
        check_protocol(message.protocol)
        if message.num_shards != self.num_shards or not 1 <= message.shard < self.num_shards:
            raise ShardMismatch(
                f"a server registers as shard {message.shard}/{message.num_shards}; "
                f"the coordinator is shard 0/{self.num_shards}: give all servers the same number of "
                "shards (--shard K/N, PS_SHARD)"
            )

    def register(self, message: pb.Register) -> tuple[asyncio.Queue[pb.Order | None], bool]:
        """A shard starts to follow; returns where its orders come out, None at the end.

        And whether its part of the jobs is lost: they have to go back.

        Raises:
            ProtocolMismatch: another version.
            ShardMismatch: a number or count that does not fit.
            Fenced: a newer process has this number, or this coordinator is not the newest one.
            ServerNotReady: this coordinator keeps places, and the process does not hold what its shard held.
        """
        self._check_place(message)
        if self._keeps_places and self.registry.loses(message):
            raise ServerNotReady("shard 0 stops: the one that is started after it lets this process in")
        generation, lost = self.registry.register(message)
        granted = pb.Granted(generation=generation, coordinator=self.registry.generations.own)
        before = self._registered.pop(message.shard, None)
        if before is not None:
            before.give_up()
        holder = f"{one_line(message.host, MAX_HOST)}, pid {message.pid}"
        entry = FollowerStream(message.address, holder, asyncio.Queue())
        entry.outbox.put_nowait(pb.Order(granted=granted))
        self._registered[message.shard] = entry
        if (awaited := self._awaited.pop(message.shard, None)) is not None:
            awaited.set()
        if len(self._registered) == self.num_shards - 1:
            self._complete.set()
        logger.info("shard %d registered at %s", message.shard, message.address)
        return entry.outbox, lost

    def keep_places(self) -> None:
        """Before `drain`: no process comes in the place of another one any more; that is the successor's."""
        self._keeps_places = True

    def close(self) -> None:
        """Ends the streams of all followers."""
        self._closed = True
        for entry in self._registered.values():
            entry.give_up()
        self._lanes.close()
        self.beside.close()

    async def drain(self) -> None:
        """Before `dump`: nothing is decided any more, and shard 0 has carried out what it was told."""
        self._drained = True  # reports that come now come again, to the successor
        await asyncio.gather(*map(asyncio.wrap_future, self._lanes.pending()))

    def unregister(self, shard: int, outbox: asyncio.Queue[pb.Order | None]) -> None:
        """A follower's stream ended."""
        entry = self._registered.get(shard)
        if entry is not None and entry.outbox is outbox:
            del self._registered[shard]
            self._complete.clear()
            entry.give_up()
            self._loop.call_later(LOST_AFTER_S, self._say_lost, shard, entry.address)

    def _say_lost(self, shard: int, address: str) -> None:
        if not self._closed and shard not in self._registered:
            logger.warning(
                "shard %d at %s no longer follows: it is gone, or its process hangs, or nothing reaches it",
                shard,
                address,
            )

    def answered(self, shard: int, done: pb.OrderDone) -> None:
        """A follower has carried out an order, or refused it."""
        entry = self._registered.get(shard)
        future = entry.waiting.pop(done.number, None) if entry is not None else None
        if future is not None and not future.done():
            future.set_result(done)

    def _take_own(self, report: Report) -> None:
        self._loop.call_soon_threadsafe(self.reported, self._own.index, report)

    def reported(self, shard: int, report: Report) -> None:
        """A shard's report; what follows from it is sent at once to each that it concerns; none answers."""
        if not self._drained:
            self._send_decisions(self._ballots.reported(shard, report))

    def _send_decisions(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            for index in decision.shards:
                entry = self._registered.get(index)
                if index == self._own.index:
                    self._decide_own(decision)
                elif entry is not None:  # else it reports again when it is back
                    entry.outbox.put_nowait(decision.order)

    def _decide_own(self, decision: Decision) -> None:
        if decision.beside:
            self._own.execute(decision.order)
        else:
            watched.outcome("the choice of a step", self._execute_own(decision.order), log=logger)

    def _execute_own(self, order: pb.Order) -> asyncio.Future[pb.OrderDone]:
        carried_out = self._lanes.submit(job_of(order), partial(self._own.execute, order))
        return asyncio.wrap_future(carried_out, loop=self._loop)

    async def order(
        self,
        order: pb.Order,
        *,
        absent_ok: bool = False,
        least: bool = False,
        limit_s: float | None = ORDER_LIMIT_S,
    ) -> dict[int, int]:
        """Sends an order to every shard and waits for all; returns the largest figures that they answer.

        Args:
            order: its number is set here.
            absent_ok: also if a shard is not registered.
            least: the smallest figures instead.
            limit_s: for each shard to answer; None: as long as it takes, also for those that are away.

        Raises:
            PsError: what the first shard that refused has said; the others may have carried it out.
            ServerNotReady: a shard is not registered, or did not answer within the limit.
        """
        clocks: dict[int, int] = {}
        extreme = min if least else max
        for outcome in await self.order_each(order, absent_ok=absent_ok, limit_s=limit_s):
            for number, clock in outcome.clocks.items():
                clocks[number] = extreme(clocks.get(number, clock), clock)
        return clocks

    async def order_each(
        self, order: pb.Order, *, absent_ok: bool = False, limit_s: float | None = ORDER_LIMIT_S
    ) -> list[pb.OrderDone]:
        """As `order`, with the answer of each shard, by number."""
        kind = order.WhichOneof("kind") or ""
        if kind in FIRST_ROUNDS:
            self._ballots.hold(getattr(order, kind).job)
        ends = kind in SECOND_ROUNDS
        try:
            if limit_s is None:
                await self.wait_complete(None)
            return await self._order_each(order, absent_ok=absent_ok, limit_s=limit_s)
        except PsError:
            ends = ends or kind in FIRST_ROUNDS  # there is no second one
            raise
        finally:
            if ends:
                self._send_decisions(self._ballots.release(getattr(order, kind).job))

    async def _order_each(self, order: pb.Order, *, absent_ok: bool, limit_s: _Limit) -> list[pb.OrderDone]:
        if not absent_ok:
            self.check_ready()
        specs: list[TableSpec] = []
        if order.WhichOneof("kind") in ("open_table", "restore"):  # it takes as long as there are parameters
            specs = await asyncio.wrap_future(self._lanes.submit(job_of(order), partial(_tables_of, order)))
        message = pb.Order()
        message.CopyFrom(order)
        message.number = next(self._numbers)
        self._note(message, specs)
        own = self._execute_own(message)  # all are sent at once: shards agree on the order of a job's
        above = sorted(self._registered) if absent_ok else range(1, self.num_shards)
        boots = {index: self.registry.known[index][0] for index in above}
        sent = {index: self._send(index, message) for index in above}
        others = [self._answer(index, boots[index], message, limit_s, sent[index]) for index in above]
        outcomes = await asyncio.gather(own, *others)
        for outcome in outcomes:
            if outcome.HasField("refused"):
                raise refused_from_proto(outcome.refused)
        return outcomes

    def _note(self, order: pb.Order, specs: list[TableSpec]) -> None:
        match order.WhichOneof("kind"):
            case "admit":
                self._ballots.admitted(order.admit.job)
            case "open_table":
                (spec,) = specs
                self._ballots.opened(order.open_table.job, spec, order.number, 0)
            case "restore":
                self._ballots.admitted(order.restore.job)
                for spec in specs:
                    step = order.restore.steps[spec.number]
                    self._ballots.opened(order.restore.job.name, spec, order.number, step)
            case "drop_job":
                self._ballots.dropped(order.drop_job.job)

    def dump(self) -> dict[str, Any]:
        """The state that a successor needs beside its jobs, for JSON: shards, and what was decided."""
        return {"standings": self.registry.dump(), **self._ballots.dump()}

    def load(self, facts: Mapping[str, Any], tables: Iterable[tuple[spec_pb2.Job, TableSpec]]) -> None:
        """Goes on with what was dumped; shard 0 holds its part of these tables by now."""
        self.registry.load(facts["standings"])
        self._awaited = {shard: asyncio.Event() for shard in self.registry.known}
        for job, spec in tables:
            opening = self._own.opening_of(job.name, spec.number)
            self._ballots.admitted(job)
            self._ballots.opened(job.name, spec, opening, 0)
        self._ballots.load(facts)
        for report in self._own.pending():  # others say it when they follow
            self.reported(self._own.index, report)

    def _send(self, shard: int, order: pb.Order) -> _Sent | None:
        entry = self._registered.get(shard)
        if entry is None:
            return None
        return entry, entry.send(order)

    async def _answer(
        self, shard: int, boot: bytes, order: pb.Order, limit_s: _Limit, sent: _Sent | None
    ) -> pb.OrderDone:
        """Until it is answered: a shard that follows again gets it again, and does nothing twice."""
        while sent is not None:
            done = await self._answer_once(shard, sent, order.number, limit_s)
            if done is not None:
                return done
            with suppress(ServerNotReady):
                await self.wait_complete(None if limit_s is None else RESTART_LIMIT_S)
            sent = self._send(shard, order) if self.registry.known[shard][0] == boot else None
        error = ServerNotReady(f"shard {shard} is gone, or has come back without what it held")
        return pb.OrderDone(number=order.number, refused=refused_to_proto(error))

    @staticmethod
    async def _answer_once(shard: int, sent: _Sent, number: int, limit_s: _Limit) -> pb.OrderDone | None:
        entry, future = sent
        try:
            async with asyncio.timeout(limit_s):
                return await future
        except TimeoutError:
            entry.waiting.pop(number, None)
            error = ServerNotReady(f"shard {shard} at {entry.address} did not answer in {limit_s:g} s")
            return pb.OrderDone(number=number, refused=refused_to_proto(error))


def _tables_of(order: pb.Order) -> list[TableSpec]:
    """That an order opens."""
    opens = order.HasField("open_table")
    return [table_from_proto(it) for it in ([order.open_table.table] if opens else order.restore.tables)]
