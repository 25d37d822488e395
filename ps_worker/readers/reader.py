"""A reader: loads consistent cuts of a job's weights into a model, and is no member of the job.

A cut holds, of each live worker, exactly the pushes below one step, on every partition of every shard. The
shards send it straight to the reader: its PULL frames come first and are acknowledged, then it asks the
coordinator. A cut that does not come about is asked for again, under the next number.

Threads: the user's reads; one takes the coordinator's replies, one of each connection its frames. All that
they have to say goes through `_inbox`, with the number of its request, so that what comes late is known.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Literal, Self, TypeAlias, cast

import torch

from ps_wire.errors import (
    ConnectionLost,
    CutAborted,
    InternalError,
    JobUnknown,
    PsError,
    ServerUnreachable,
    TableMismatch,
    Unavailable,
    UsageError,
)
from ps_wire.frames import frame as wire
from ps_wire.frames.messages import refused_from_proto, table_from_proto
from ps_wire.process import watched
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.exchange.exchange import Exchange
from ps_worker.model import model_table
from ps_worker.process import console
from ps_worker.process.retry import ON_ITS_WAY
from ps_worker.settings import Settings
from ps_worker.transport.carrier_choice import CarrierChoice
from ps_worker.transport.connection import Connection
from ps_worker.transport.open_service import open_service
from ps_worker.transport.server_check import check_servers

logger = logging.getLogger("ps_worker")
READ_LIMIT_S = 60.0  # as long as a long step, and the upload of its buffers
LEAVE_LIMIT_S = 5.0  # for a thread that has been told to end
AGAIN_S = 0.5  # between two tries to join


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A consistent cut of weights that was read.

    Attributes:
        version: of the weights: the oldest over partitions.
        spread: newest minus oldest version over partitions: 0 under BSP.
        clocks: worker -> the first of its steps that is not in the cut; of those live when it was asked for.
        buffers: where buffers, and parameters without an optimizer, are from: a live worker; the end of the
            job; the start of the table, if there is neither; "none", if nothing is kept with this table.
        buffers_step: the steps that the live worker had taken by then; else 0.
        ended: the job had ended by then: these are its final weights, and no cut after this one differs.
    """

    version: int
    spread: int
    clocks: Mapping[int, int]
    buffers: Literal["live", "final", "start", "none"]
    buffers_step: int
    ended: bool


class _News(Enum):
    ASKED = "a shard has noted what it is to send; with its number"
    HERE = "all weights are here"
    BROKE = "a connection was made again: what was on its way on it is lost"


_Item: TypeAlias = PsError | pb.ReadReply | tuple[_News, int, int]


class _Inbox(queue.SimpleQueue[_Item]):
    """The messages to a reader that it has not heard yet; a `Peer` of its connections."""

    def __init__(self) -> None:
        self.tables: dict[int, tuple[TableSpec, Exchange]] = {}
        self._asking: Exchange | None = None  # for what was asked last

    def ask(self, exchange: Exchange) -> None:
        """This exchange's weights are asked for next: a connection that is made again asks once more."""
        self._asking = exchange

    def put_table(self, number: int, spec: TableSpec, exchange: Exchange) -> None:
        """A table that is read from now on."""
        self.tables[number] = spec, exchange

    def receive(self, frame: wire.Frame) -> None:
        """See `Peer.receive`."""
        if frame.kind is wire.Kind.ACK:
            self.put((_News.ASKED, frame.step, frame.partition))
        elif frame.kind is wire.Kind.PULLED and (known := self.tables.get(frame.table)) is not None:
            known[1].receive(frame)

    def landing(self, frame: wire.Frame, payload_bytes: int) -> memoryview | None:
        """See `Peer.landing`."""
        known = self.tables.get(frame.table)
        return None if known is None else known[1].landing(frame, payload_bytes)

    def replay(self, shard: int) -> Iterable[wire.Frame]:
        """See `Peer.replay`."""
        again = [] if self._asking is None else list(self._asking.replay(shard))
        if again:
            self.put((_News.BROKE, again[-1].step, 0))
        return again

    def fail(self, error: PsError) -> None:
        """See `Peer.fail`."""
        self.put(error)
        for _, exchange in list(self.tables.values()):
            exchange.in_flight.fail(error)


class Reader:
    """Made by `connect(role="reader")`; a context manager that leaves at its end. Not thread-safe."""

    def __init__(self, settings: Settings) -> None:
        """Connects to a job that has been made, or waits for it.

        Raises:
            JobUnknown: there is no job of that name; where it was waited for: or it has not started.
            ServerUnreachable: a server does not answer; its address is named.
        """
        self._settings = settings
        self._number = 0
        self._cutting = 0  # the number of a cut that is being made
        self._error: PsError | None = None
        self._inbox = _Inbox()
        self._connections: list[Connection] = []
        self._requests: queue.SimpleQueue[pb.ReadRequest | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        console.show(logger)
        self._service = open_service(settings, logger.warning)
        try:
            check_servers(self._service, settings.connect_limit_s, logger.info)
            self._worker = self._join_in_time()
            carriers = CarrierChoice(self._service, settings.carrier, logger.info)
            self._connections += (  # one by one: Ctrl-C may come between
                Connection(
                    service=self._service,
                    carriers=carriers,
                    shard=shard,
                    job=settings.job,
                    worker=self._worker,
                    incarnation=1,
                    peer=self._inbox,
                    retry_limit_s=settings.retry_limit_s,
                    log=logger.info,
                )
                for shard in range(len(self._service.addresses))
            )
        except BaseException:
            self.leave()
            raise

    def _join_in_time(self) -> int:
        """Joins; again and again, where a try was lost on its way, or the job is to be waited for."""
        wait_s, connect_limit_s = self._settings.wait_s, self._settings.connect_limit_s
        begun_s = time.monotonic()
        said: set[str] = set()
        while True:
            try:
                worker = self._join()
                if wait_s:
                    self._ask(time.monotonic() + connect_limit_s, table=0)
            except (JobUnknown, Unavailable) as error:
                lost = isinstance(error, ON_ITS_WAY)
                left_s = begun_s + (max(wait_s, connect_limit_s) if lost else wait_s) - time.monotonic()
                if left_s <= 0:
                    waited = f"; waited for {wait_s:g} s (PS_WAIT)" if wait_s else ""
                    raise type(error)(f"{error.message}{waited}", **error.facts) from None
                if lost:
                    text = f"{error.message}; trying again"
                else:
                    text = f"waiting for job {self._settings.job}, up to {wait_s:g} s (PS_WAIT)"
                if text not in said:
                    said.add(text)
                    logger.info("reader: %s", text)
                self._end_stream()
                time.sleep(min(AGAIN_S, left_s))
            else:
                return worker

    def _end_stream(self) -> None:
        """Of the join that was refused; another one begins anew."""
        self._requests.put(None)
        self._requests, self._inbox, self._error = queue.SimpleQueue(), _Inbox(), None

    def _join(self) -> int:
        replies = self._service.coordinator.Read(iter(self._requests.get, None))
        listen = partial(self._listen, replies, self._inbox)
        self._thread = watched.thread("ps-reader", listen, log=logger, failed=self._failed)
        self._thread.start()
        join = pb.ReadJoin(
            protocol=wire.PROTOCOL, job=self._settings.job, host=socket.gethostname(), pid=os.getpid()
        )
        reply = self._ask(time.monotonic() + self._settings.connect_limit_s, join=join)
        return int(reply.joined.worker)

    def read(self, model: torch.nn.Module, *, table: int = 0, limit_s: float = READ_LIMIT_S) -> Cut:
        """Loads a consistent cut of a table into the model, by name; and buffers, as a worker has them.

        Blocks until the live workers have pushed the steps that they have begun, and until one of them has
        come to the end of a step, if there are buffers. The model is written at the end, all at once.
        Buffers, parameters without an optimizer, and those of other tables are no part of the cut: they are
        those of one worker at about the same time. Parameters of bfloat16 and float16 get rounded values.

        Args:
            model: with the parameters that the workers have wrapped; on any device.
            table: its number: tables count from 0 in the order in which the workers make them. An optimizer
                makes one, and one more for each `add_param_group`.
            limit_s: for all of it.

        Raises:
            TableMismatch: a parameter is missing or has another shape or dtype; nothing was loaded.
            UsageError: the same of a buffer, or the reader has left, or a number makes no sense.
            JobUnknown: the job has no such table, or it has not started.
            JobDropped: a person has dropped the job: this reader is over.
            CutAborted: no cut came about within `limit_s`: a worker takes too long for a step.
            RolledBack: the job has gone back to a snapshot, and this reader is over: connect another one.
            ConnectionLost: a server is gone.
        """
        if table < 0 or not limit_s > 0:
            raise UsageError(f"read takes a table >= 0 and a limit_s > 0, got {table} and {limit_s}")
        until_s = time.monotonic() + min(limit_s, threading.TIMEOUT_MAX)
        self._end_cut(table, until_s)
        spec, exchange = self._table(table, until_s)
        inside = _matched(spec, model, self._settings.job)
        armed = None
        while armed is None:
            armed = self._try_cut(table, exchange, until_s)
        outside = model_table.outside_of(model, inside)
        buffers, step = self._load_outside(table, outside, until_s) if outside else ("none", 0)
        with torch.no_grad():
            for parameter, view in zip(inside, exchange.weights.views, strict=True):
                parameter.copy_(view)
        return Cut(
            version=min(exchange.in_flight.versions),
            spread=exchange.in_flight.spread,
            clocks=dict(armed.clocks),
            buffers=cast(Literal["live", "final", "start", "none"], buffers),
            buffers_step=step,
            ended=armed.ended,
        )

    def leave(self) -> None:
        """Ends all connections. Safe to call twice."""
        self._error = self._error or UsageError("this reader has left: connect again to read on")
        self._requests.put(None)
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._service.close()
        if self._thread is not None and self._thread.ident is not None:  # Ctrl-C may come before it starts
            self._thread.join(LEAVE_LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    # -- what comes in ---------------------------------------------------------------------------------

    def _failed(self, bug: Exception) -> None:
        self._inbox.put(InternalError.of(bug))

    def _listen(self, replies: Iterator[pb.ReadReply], inbox: _Inbox) -> None:
        joined = False
        try:
            for reply in replies:
                if reply.number == 0 and reply.HasField("refused"):  # whatever was asked: nothing comes after
                    inbox.put(refused_from_proto(reply.refused))
                    return
                inbox.put(reply)
                joined = True
            why, error = f"the coordinator at {self._service.addresses[0]} ended the stream", None
        except PsError as broken:
            why, error = broken.message, broken
        if error is None or (joined and isinstance(error, ServerUnreachable)):  # it was there
            error = ConnectionLost(why)
        inbox.put(error)

    def _next(self, until_s: float) -> pb.ReadReply | tuple[_News, int, int]:
        if self._error is not None:
            raise self._error
        try:
            item = self._inbox.get(timeout=max(until_s - time.monotonic(), 0.0))
        except queue.Empty:
            raise CutAborted(
                f"job {self._settings.job} was not read in time: no live worker came to the end of a step "
                "(one in this thread cannot while it reads); read later, or with a larger limit_s"
            ) from None
        if isinstance(item, PsError):
            self._error = item
            raise item
        return item

    def _reply(self, until_s: float) -> pb.ReadReply:
        """The next reply to the latest request."""
        while True:
            reply = self._next(until_s)
            if isinstance(reply, pb.ReadReply) and reply.number == self._number:
                if reply.HasField("refused"):
                    raise refused_from_proto(reply.refused)
                return reply

    def _ask(self, until_s: float, **request: Any) -> pb.ReadReply:
        self._number += 1
        self._requests.put(pb.ReadRequest(number=self._number, **request))
        return self._reply(until_s)

    # -- tables and cuts -------------------------------------------------------------------------------

    def _table(self, number: int, until_s: float) -> tuple[TableSpec, Exchange]:
        if number not in self._inbox.tables:
            spec = table_from_proto(self._ask(until_s, table=number).table)
            exchange = Exchange(
                table=number,
                plan=Plan(spec, len(self._connections)),
                worker=self._worker,
                incarnation=1,
                start=spec.optimizer.hyperparameters,
            )
            exchange.connect(self._connections)
            self._inbox.put_table(number, spec, exchange)
        return self._inbox.tables[number]

    def _end_cut(self, table: int, until_s: float) -> None:
        """Ends one that was broken off, as by Ctrl-C, everywhere: before that nothing else can be asked."""
        if self._cutting:
            self._requests.put(pb.ReadRequest(done=self._cutting))
            self._ask(until_s, table=table)
            self._cutting = 0

    def _try_cut(self, table: int, exchange: Exchange, until_s: float) -> pb.Cut | None:
        """One cut, as it was armed, when all weights are here; None if it does not come about."""
        self._number += 1
        number = self._cutting = self._number
        self._inbox.ask(exchange)
        exchange.pull(step=number, cut=True)
        unasked = {partition.shard for partition in exchange.partitions}
        while unasked:
            match self._next(until_s):
                case (_News.ASKED, about, partition) if about == number:
                    unasked.discard(exchange.partitions[partition].shard)
        exchange.in_flight.when_pulled(lambda _error: self._inbox.put((_News.HERE, number, 0)))
        try:
            self._requests.put(pb.ReadRequest(number=number, cut=table))
            armed = self._armed(number, until_s)
        finally:
            self._requests.put(pb.ReadRequest(done=number))
        self._cutting = 0
        return armed

    def _armed(self, number: int, until_s: float) -> pb.Cut | None:
        """The cut of this number, when all weights are here; None if it does not come about."""
        armed: pb.Cut | None = None
        here = False
        while armed is None or not here:
            match self._next(until_s):
                case (_News.HERE, about, _) if about == number:
                    here = True
                case (_News.BROKE, about, _) if about == number:
                    return None
                case pb.ReadReply() as reply if reply.number == number:
                    if reply.HasField("refused"):
                        raise refused_from_proto(reply.refused)
                    if reply.HasField("later"):
                        return None
                    armed = reply.cut
        return armed

    def _load_outside(
        self, table: int, outside: Mapping[str, torch.Tensor], until_s: float
    ) -> tuple[str, int]:
        reply = self._ask(until_s, state=table)
        while reply.HasField("later"):
            reply = self._ask(until_s, state=table)
        blob = bytearray(reply.state.data)
        while not reply.state.last:
            reply = self._reply(until_s)
            blob += reply.state.data
        mine = model_table.unpack(bytes(blob), "" if reply.state.origin == "start" else f"{table}/")
        if not mine:  # they go along with another table of the model, or there are none
            return "none", 0
        model_table.copy_into(mine, outside)
        return reply.state.origin, int(reply.state.step)


def _matched(spec: TableSpec, model: torch.nn.Module, job: str) -> list[torch.nn.Parameter]:
    """The model's parameters in the table's order.

    Raises:
        TableMismatch: the first difference is named.
    """
    named = dict(model.named_parameters())
    found = []
    for wanted in spec.parameters:
        parameter = named.get(wanted.name)
        there = f"{wanted.dtype} {list(wanted.shape)}"
        here, fits = "no such parameter", False
        if parameter is not None:
            master = model_table.MASTERS.get(parameter.dtype, parameter.dtype)
            fits = (str(master), tuple(parameter.shape)) == (f"torch.{wanted.dtype}", wanted.shape)
            here = f"{str(parameter.dtype).removeprefix('torch.')} {list(parameter.shape)}"
        if parameter is None or not fits:
            raise TableMismatch(
                f"table {spec.number} of job {job}: {wanted.name!r} is {there} there; this model has {here}",
                parameter=wanted.name,
            )
        found.append(parameter)
    return found
