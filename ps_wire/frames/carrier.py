"""The contract of a carrier with its two ends: frames leave in order, or the connection is closed.

A connection carries whole frames both ways. The server end hands each received frame to a `Receiver`
and gives it an `Outlet` to answer through; the worker end is in `ps_worker.transport.connection`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from ps_wire.errors import FrameRefused, ProtocolMismatch, PsError
from ps_wire.frames import frame as wire
from ps_wire.frames.shared_place import SharedPlace
from ps_wire.spec.choice import choose


class Carrier(StrEnum):
    """The carriers between processes, best first."""

    SHM = "shm"  # shared memory, and frames without payload over a Unix socket
    UDS = "uds"  # Unix sockets: both ends on one host
    TCP = "tcp"
    GRPC = "grpc"  # wherever HTTP/2 passes


AUTO = "auto"  # the best one that both ends reach
MEMORY = "memory"  # inside one process; nobody chooses it
VALID = ", ".join((AUTO, *Carrier))


def parse(text: str) -> Carrier | None:
    """The carrier that `text` names, None for `auto`; else raises `UsageError`."""
    return None if text.strip() == AUTO else choose(Carrier, text, "carrier", valid=VALID)


class Message:
    """A frame on its way to one or more peers, encoded at most once.

    The payload may be memory that changes later. An outlet holds the message until the frame has left, or was
    copied (`encoded`); its owner leaves the memory alone while it is held. Thread-safe.

    Attributes:
        frame: what is sent.
    """

    __slots__ = ("__weakref__", "_encoded", "_holds", "_keeps", "_lock", "_told", "frame")

    def __init__(self, frame: wire.Frame, *, keeps: object = None) -> None:
        """Takes the frame, and what must live as long as the message: who owns its descriptors."""
        self.frame = frame
        self._keeps = keeps
        self._encoded: bytes | None = None
        self._told: Message | None = None
        self._holds = 0
        self._lock = threading.Lock()

    def encoded(self) -> bytes:
        """The frame as bytes of its own, with a copy of the payload; one for all who ask."""
        if self._encoded is None:
            self._encoded = wire.encode(self.frame)
        return self._encoded

    def told(self) -> Message:
        """The same without payload, for who has it in shared memory; one for all who ask."""
        if self._told is None:
            frame = self.frame
            self._told = Message(
                wire.Frame(
                    kind=frame.kind,
                    flags=frame.flags | wire.SHARED,
                    table=frame.table,
                    partition=frame.partition,
                    step=frame.step,
                    version=frame.version,
                    hyper=frame.hyper,
                    meta=frame.meta,
                )
            )
        return self._told

    def hold(self) -> None:
        """The payload is still needed, until `release` has been called as often."""
        with self._lock:
            self._holds += 1

    def release(self) -> None:
        """Ends one hold."""
        with self._lock:
            self._holds -= 1

    @property
    def held(self) -> bool:
        """Whether somebody still needs the payload."""
        return self._holds > 0


class Outlet(Protocol):
    """The shard's end of one connection, into which frames are put.

    Attributes:
        sent_bytes: payload that was put into it so far, also where it is shared and does not travel.
        queued_bytes: that wait until the peer reads, roughly.
    """

    @property
    def sent_bytes(self) -> int:
        """See above."""
        ...

    @property
    def queued_bytes(self) -> int:
        """See above."""
        ...

    def send(self, message: Message) -> None:
        """Queues one frame. Never blocks; thread-safe; silent once the connection is closed.

        When it returns, the outlet has a copy of the payload, or holds the message.
        """
        ...

    def write_along(
        self, table: int, partition: int, version: int, write: Callable[[SharedPlace], bool]
    ) -> bool:
        """Has weights written where the peer waits for them, as they are made: they are sent without a copy.

        Args:
            table: of the weights.
            partition: of the table.
            version: that they will have.
            write: makes them, there, too; or does nothing and returns False.

        Returns:
            What `write` has returned; False where it was not called: nobody waits, or for a payload.
        """
        ...

    def wait_room(self) -> None:
        """Waits while the peer has too much to read, before a frame of it is taken.

        It returns once the peer has read, or the connection is closed. Under no lock that others need: a peer
        may stop reading for ever.
        """
        ...

    def sever(self) -> None:
        """Ends the connection at once, whatever is still queued. Never blocks; thread-safe."""
        ...


class Receiver(Protocol):
    """Takes the frames of one connection, one after the other, on one thread at a time."""

    def receive(self, frame: wire.Frame) -> bool:
        """Takes one frame. False: the connection is to be closed (what is queued is sent first)."""
        ...

    def refuse(self, error: PsError) -> None:
        """Bytes came that are no frame; the connection is to be closed, as for `receive`."""
        ...

    def closed(self) -> None:
        """The connection is gone; called once, after the last frame."""
        ...


def deliver(message: bytes, receiver: Receiver) -> bool:
    """Gives an encoded frame to a receiver; False: the connection is to be closed."""
    try:
        frame = wire.decode(message)
    except (FrameRefused, ProtocolMismatch) as error:
        receiver.refuse(error)
        return False
    return receiver.receive(frame)
