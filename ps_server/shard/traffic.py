"""Traffic of a shard by carrier, over all connections that it has had since the process began.

A connection counts for itself while it is there, and its counts are added when it goes: so a frame costs no
lock. It must not know frames.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Refused(StrEnum):
    """The kinds of what a shard refuses."""

    FRAME = "frame"
    CONNECTION = "connection"  # it said no HELLO in time, or had to go for another one
    CALL = "call"  # without a token of ours, or one too many of those that need none


class Flow(Protocol):
    """A connection that counts what comes over it.

    Attributes:
        carrier: its name.
        received_bytes: payload that came over it so far.
        sent_bytes: see `Outlet`; so is the next one.
        queued_bytes: roughly.
    """

    carrier: str

    @property
    def received_bytes(self) -> int:
        """See above."""
        ...

    @property
    def sent_bytes(self) -> int:
        """See above."""
        ...

    @property
    def queued_bytes(self) -> int:
        """See above."""
        ...


@dataclass(slots=True)
class CarrierFigures:
    """The traffic of one carrier; `connections` and `queued_bytes` are of those that are there now."""

    connections: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    queued_bytes: int = 0


class Traffic:
    """The counts of all connections. Thread-safe; `_lock` guards both maps."""

    def __init__(self) -> None:
        """There was none."""
        self._lock = threading.Lock()
        self._live: dict[int, Flow] = {}  # by id
        self._gone: dict[str, CarrierFigures] = {}

    def enter(self, flow: Flow) -> None:
        """A connection begins; its carrier stays what it is."""
        with self._lock:
            self._live[id(flow)] = flow

    def leave(self, flow: Flow) -> None:
        """It is over; one that has left already is passed over."""
        with self._lock:
            if self._live.pop(id(flow), None) is not None:
                gone = self._gone.setdefault(str(flow.carrier), CarrierFigures())
                gone.received_bytes += flow.received_bytes
                gone.sent_bytes += flow.sent_bytes

    def figures(self) -> dict[str, CarrierFigures]:
        """By carrier, of those that a connection has had."""
        with self._lock:
            made = {
                carrier: CarrierFigures(received_bytes=it.received_bytes, sent_bytes=it.sent_bytes)
                for carrier, it in self._gone.items()
            }
            for flow in self._live.values():
                it = made.setdefault(str(flow.carrier), CarrierFigures())
                it.connections += 1
                it.received_bytes += flow.received_bytes
                it.sent_bytes += flow.sent_bytes
                it.queued_bytes += flow.queued_bytes
        return made
