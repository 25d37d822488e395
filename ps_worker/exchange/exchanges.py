"""The exchanges of a worker's tables: the `Peer` of its connections.

`_lock` guards `_exchanges`, which connections read while the user's thread adds tables, and `_failure`, which
a connection may have before there is a table.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from ps_wire.errors import Evicted, PsError
from ps_wire.frames import frame as wire
from ps_wire.process import trace
from ps_worker.exchange.exchange import Exchange


class Exchanges:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exchanges: dict[int, Exchange] = {}
        self._failure: PsError | None = None

    @property
    def exchanges(self) -> list[Exchange]:
        """Of all tables, by number."""
        with self._lock:
            return list(self._exchanges.values())

    @trace.traced("take an answer")
    def take(self, frame: wire.Frame) -> None:
        """See `Peer.take`."""
        with self._lock:
            exchange = self._exchanges.get(frame.table)
        if exchange is not None and frame.kind is not wire.Kind.HELLO:
            exchange.take(frame)

    def landing(self, frame: wire.Frame, payload_bytes: int) -> memoryview | None:
        """See `Peer.landing`."""
        with self._lock:
            exchange = self._exchanges.get(frame.table)
        return exchange.landing(frame, payload_bytes) if exchange is not None else None

    def replay(self, shard: int) -> Iterator[wire.Frame]:
        """See `Peer.replay`."""
        for exchange in self.exchanges:
            yield from exchange.replay(shard)

    def fail(self, error: PsError) -> None:
        """See `Peer.fail`: every wait, now and later, ends with this error.

        The first one counts, but that the coordinator has evicted this worker tells more than what a shard
        that comes back has said before: it can join again.
        """
        with self._lock:
            prevails = isinstance(error, Evicted) and not isinstance(self._failure, Evicted)
            if self._failure is None or prevails:
                self._failure = error
        for exchange in self.exchanges:
            exchange.fail(error)
