"""The exchanges of a worker's tables: the `Peer` of its connections.

`_lock` guards `_exchanges`, which connections read while the user's thread adds tables, and `_failure`, which
a connection may have before there is a table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from ps_wire.errors import PsError
from ps_wire.frames import frame as wire
from ps_wire.process import trace
from ps_worker.exchange.exchange import Exchange
from ps_worker.exchange.in_flight import prevailing


class Exchanges:
    """The exchanges by the number of their table. Iterating gives those that are there now, by number."""

    def __init__(self, at_failure: Callable[[PsError], None]) -> None:
        """Has none; `at_failure` is called with a failure, on any thread, before exchanges hear of it."""
        self._at_failure = at_failure
        self._lock = threading.Lock()
        self._exchanges: dict[int, Exchange] = {}
        self._failure: PsError | None = None

    def __iter__(self) -> Iterator[Exchange]:
        with self._lock:
            return iter(list(self._exchanges.values()))

    def __getitem__(self, table: int) -> Exchange:
        with self._lock:
            return self._exchanges[table]

    def add(self, exchange: Exchange) -> None:
        """One more, which fails with what has failed the others; again where its start was interrupted."""
        with self._lock:
            self._exchanges[exchange.number] = exchange
            failure = self._failure
        if failure is not None:
            exchange.in_flight.fail(failure)

    def remove(self, table: int) -> None:
        """It is not to be, if it is there: its start has failed."""
        with self._lock:
            self._exchanges.pop(table, None)

    @property
    def failure(self) -> PsError | None:
        """Why the job cannot go on for this worker; None: it can."""
        with self._lock:
            return self._failure

    def reenter(self, incarnation: int) -> None:
        """The worker has joined again: nothing has failed, and each begins anew before it connects."""
        with self._lock:
            self._failure = None
        for exchange in self:
            exchange.reenter(incarnation)

    # -- from connections ------------------------------------------------------------------------------

    @trace.traced("take an answer")
    def receive(self, frame: wire.Frame) -> None:
        """See `Peer.receive`."""
        with self._lock:
            exchange = self._exchanges.get(frame.table)
        if exchange is not None and frame.kind is not wire.Kind.HELLO:
            exchange.receive(frame)

    def landing(self, frame: wire.Frame, payload_bytes: int) -> memoryview | None:
        """See `Peer.landing`."""
        with self._lock:
            exchange = self._exchanges.get(frame.table)
        return exchange.landing(frame, payload_bytes) if exchange is not None else None

    def replay(self, shard: int) -> Iterator[wire.Frame]:
        """See `Peer.replay`."""
        for exchange in self:
            yield from exchange.replay(shard)

    def fail(self, error: PsError) -> None:
        """See `Peer.fail`: every wait, now and later, ends with this error or one that prevails."""
        self._at_failure(error)
        with self._lock:
            self._failure = prevailing(self._failure, error)
        for exchange in self:
            exchange.in_flight.fail(error)
