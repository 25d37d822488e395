"""What a carrier owes to the two ends: frames out, in order, or a connection that is closed.

A connection carries whole frames both ways. The server end hands each received frame to a `Receiver`
and gives it an `Outlet` to answer through; the worker end is in `ps_worker.connection`.
"""

from __future__ import annotations

from typing import Protocol


class Outlet(Protocol):
    """Where a shard puts frames for one connection."""

    def send(self, message: bytes) -> None:
        """Queues one encoded frame. Never blocks; thread-safe; silent once the connection is closed."""
        ...


class Receiver(Protocol):
    """Takes the frames of one connection, one after the other, on one thread at a time."""

    def receive(self, message: bytes) -> bool:
        """Takes one frame. False: the connection is to be closed (what is queued is sent first)."""
        ...

    def closed(self) -> None:
        """The connection is gone; called once, after the last frame."""
        ...
