"""A reader: loads consistent cuts of a job's weights into a model, and is no member of the job.

A cut holds, of each live worker, exactly the pushes below one step, on every partition of every shard. The
shards send it straight to the reader: its PULL frames come first and are acknowledged, then it asks the
coordinator. What is under way when the coordinator gives a cut up is asked for again, under the next number.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from ps_wire import frame as wire
from ps_wire.errors import ConnectionLost, CutAborted, PsError, TableMismatch
from ps_wire.messages import refused_from_proto, table_from_proto
from ps_wire.plan import Plan
from ps_wire.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker import model_spec
from ps_worker.connection import Connection
from ps_worker.exchange import Exchange
from ps_worker.reach import reach
from ps_worker.server_check import check_servers
from ps_worker.settings import Settings

logger = logging.getLogger("ps_worker")

READ_LIMIT_S = 60.0
CUT_LIMIT_S = 9.0  # of one try; the coordinator gives up by itself soon after


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What was read.

    Attributes:
        version: of the weights: the oldest over partitions.
        spread: newest minus oldest version over partitions: 0 under BSP.
        clocks: worker -> the first of its steps that is not in the cut; of those live then.
        buffers_step: the steps that the worker had taken whose buffers came; 0: those of the start. None: the
            model has none, and no parameter without an optimizer.
    """

    version: int
    spread: int
    clocks: Mapping[int, int]
    buffers_step: int | None


class Reader:
    """Made by `connect(role="reader")`; a context manager that leaves at its end. Not thread-safe."""

    def __init__(self, settings: Settings) -> None:
        """Connects to a job that has been made.

        Raises:
            JobUnknown: there is no job of that name.
            ServerUnreachable: a server does not answer; its address is named.
        """
        self._settings = settings
        self._number = 0
        self._tables: dict[int, tuple[TableSpec, Exchange]] = {}
        self._exchange: Exchange | None = None
        self._asked = threading.Semaphore(0)
        self._error: PsError | None = None
        self._connections: list[Connection] = []
        self._requests: queue.SimpleQueue[pb.ReadRequest | None] = queue.SimpleQueue()
        self._service = reach(settings.servers)
        try:
            check_servers(self._service, settings.connect_limit_s)
            self._replies = self._service.coordinator.Read(iter(self._requests.get, None))
            join = pb.ReadJoin(
                protocol=wire.PROTOCOL, job=settings.job, host=socket.gethostname(), pid=os.getpid()
            )
            self._reader = self._ask("joined", join=join).worker
            self._connections += [
                Connection(
                    service=self._service,
                    shard=shard,
                    job=settings.job,
                    worker=self._reader,
                    incarnation=1,
                    peer=self,
                    retry_limit_s=settings.retry_limit_s,
                    log=logger.info,
                )
                for shard in range(len(self._service.addresses))
            ]
        except BaseException:
            self.leave()
            raise

    def read(self, model: torch.nn.Module, *, table: int = 0, limit_s: float = READ_LIMIT_S) -> Cut:
        """Loads a consistent cut of a table into the model, by name; and buffers, as a worker has them.

        Blocks until the live workers have pushed the steps that they have begun. The model is written at the
        end, all at once. Buffers, and parameters without an optimizer, are those of one worker at about the
        same time: they are no part of the cut.

        Args:
            model: with the parameters that the workers have wrapped; on any device.
            table: number of the table, in the order in which the workers make theirs.
            limit_s: for all tries.

        Raises:
            TableMismatch: a parameter is missing or has another shape or dtype; nothing was loaded.
            JobUnknown: the job has no such table, or it has not started.
            CutAborted: no cut came about within `limit_s`: a worker takes too long for a step.
        """
        spec, exchange = self._table(table)
        inside = _matched(spec, model, self._settings.job)
        clocks = self._take_cut(table, exchange, time.monotonic() + limit_s)
        outside = model_spec.outside_of(model, inside)
        step = self._load_outside(table, outside) if outside else None
        with torch.no_grad():
            for parameter, view in zip(inside, exchange.weights.views, strict=True):
                parameter.copy_(view)
        return Cut(
            version=min(exchange.versions),
            spread=max(exchange.versions) - min(exchange.versions),
            clocks=clocks,
            buffers_step=step,
        )

    def leave(self) -> None:
        """Ends all connections. Safe to call twice."""
        self._requests.put(None)
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    # -- the coordinator -------------------------------------------------------------------------------

    def _ask(self, wanted: str, **request: Any) -> Any:
        """Sends a request, if one is given, and returns the next reply of that kind."""
        if request:
            self._requests.put(pb.ReadRequest(**request))
        for reply in self._replies:
            kind = reply.WhichOneof("kind")
            if kind == "refused":
                raise refused_from_proto(reply.refused)
            if kind == wanted and (kind != "aborted" or reply.aborted.number == self._number):
                return getattr(reply, kind)
            assert kind == "aborted", (kind, wanted)  # and came in all the same
        raise ConnectionLost(f"the coordinator at {self._service.addresses[0]} ended the stream")

    def _table(self, number: int) -> tuple[TableSpec, Exchange]:
        if number not in self._tables:
            spec = table_from_proto(self._ask("table", table=number))
            exchange = Exchange(
                table=number,
                plan=Plan(spec, len(self._connections)),
                worker=self._reader,
                incarnation=1,
                start=spec.optimizer.hyperparameters,
            )
            exchange.connect(self._connections)
            self._tables[number] = spec, exchange
        return self._tables[number]

    def _take_cut(self, table: int, exchange: Exchange, until_s: float) -> dict[int, int]:
        while True:
            self._number += 1
            clocks = self._try_cut(table, exchange, until_s)
            if clocks is not None:
                return clocks
            if time.monotonic() > until_s:
                raise CutAborted(
                    f"no consistent cut of table {table} of job {self._settings.job} came about in time: "
                    "the live workers did not push what they have begun; read later, or with a larger limit_s"
                )

    def _try_cut(self, table: int, exchange: Exchange, until_s: float) -> dict[int, int] | None:
        while self._asked.acquire(blocking=False):
            pass
        self._exchange = exchange
        exchange.pull(step=self._number, cut=True)
        done = threading.Event()
        for _ in {partition.shard for partition in exchange.partitions}:
            left_s = max(until_s - time.monotonic(), 0.1)
            if not self._asked.acquire(timeout=left_s):
                return None
            self._check()
        armed = self._ask("cut", cut=pb.ReadCut(table=table, number=self._number))
        exchange.when_pulled(lambda _error: done.set())
        there = done.wait(min(CUT_LIMIT_S, max(until_s - time.monotonic(), 0.1)))
        self._check()
        self._requests.put(pb.ReadRequest(done=self._number if there else 0))
        if there:
            return dict(armed.clocks)
        self._ask("aborted")
        return None

    def _load_outside(self, table: int, outside: Mapping[str, torch.Tensor]) -> int:
        blob = bytearray()
        chunk = self._ask("state", state=table)
        while True:
            blob += chunk.data
            if chunk.last:
                break
            chunk = self._ask("state")
        names = {f"{table}/{name}": tensor for name, tensor in outside.items()} if chunk.whole else outside
        model_spec.unpack_into(bytes(blob), names)
        return int(chunk.step)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    # -- Peer, for connections -------------------------------------------------------------------------

    def take(self, frame: wire.Frame) -> None:
        """See `Peer.take`."""
        if frame.kind is wire.Kind.ACK and frame.step == self._number:
            self._asked.release()
        elif frame.kind is wire.Kind.PULLED and (known := self._tables.get(frame.table)) is not None:
            known[1].take(frame)

    def replay(self, shard: int) -> Iterable[wire.Frame]:
        """See `Peer.replay`."""
        return [] if self._exchange is None else self._exchange.replay(shard)

    def fail(self, error: PsError) -> None:
        """See `Peer.fail`."""
        self._error = self._error or error
        for _, exchange in list(self._tables.values()):
            exchange.fail(error)
        self._asked.release(len(self._connections) + 1)


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
        here = "no such parameter"
        if parameter is not None:
            here = f"{str(parameter.dtype).removeprefix('torch.')} {list(parameter.shape)}"
        if parameter is None or here != there:
            raise TableMismatch(
                f"table {spec.number} of job {job}: {wanted.name!r} is {there} there; this model has {here}",
                parameter=wanted.name,
            )
        found.append(parameter)
    return found
