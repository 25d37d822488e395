"""Messages on their way out of one connection, and when they leave.

Whoever handles several frames or steps in a row does so `corked`: what it sends meanwhile leaves at the end,
together, so that threads and peers are woken once and not for each frame.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter

from ps_server.session import MAX_OUTBOX_FRAMES
from ps_wire import frame as wire
from ps_wire.carrier import Message
from ps_wire.frame_queue import FrameQueue
from ps_wire.frame_socket import take_batch

MAX_OUTBOX_BYTES = 64 << 20  # of payload; from a peer that has so much to read, nothing is taken meanwhile


class _Cork(threading.local):
    waiting: dict[Outbox, None] | None = None  # outboxes that have something to send, in order


_cork = _Cork()


@contextmanager
def corked() -> Iterator[None]:
    """What this thread sends inside leaves when it ends."""
    if _cork.waiting is not None:
        yield
        return
    waiting: dict[Outbox, None] = {}
    _cork.waiting = waiting
    try:
        yield
    finally:
        _cork.waiting = None
        for outbox in waiting:
            outbox.wake()


class Outbox:
    """See the module's docstring. An `Outlet`; it holds each message until it has left, or nothing leaves.

    Attributes:
        broken: nothing leaves any more.
    """

    def __init__(self) -> None:
        self.broken = False
        self._changed = threading.Condition()  # guards what follows
        self._messages: FrameQueue[Message] = FrameQueue(
            attrgetter("frame"), bulk=wire.Kind.PULLED, others_wait=False
        )
        self._bytes = 0
        self._closed = False

    def send(self, message: Message) -> None:
        """See `Outlet.send`."""
        with self._changed:
            if len(self._messages) >= MAX_OUTBOX_FRAMES:
                self._close(broken=True)
            if self._closed:
                return
            self._bytes += len(message.frame.payload)
            message.hold()
            self._messages.append(message)
            if _cork.waiting is None:
                self._changed.notify_all()
            else:
                _cork.waiting[self] = None

    def wake(self) -> None:
        """What was sent corked leaves now."""
        with self._changed:
            self._changed.notify_all()

    def close(self, *, broken: bool = False) -> None:
        """No more messages; those queued still leave, unless the connection is broken. Any thread."""
        with self._changed:
            self._close(broken=broken)

    def _close(self, *, broken: bool) -> None:
        self.broken |= broken
        self._closed = True
        self._changed.notify_all()

    def wait_room(self) -> None:
        """Waits while the peer has too much to read."""
        if self._bytes > MAX_OUTBOX_BYTES:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._bytes <= MAX_OUTBOX_BYTES)

    def next(self) -> list[Message]:
        """Waits for messages, weights of first layers first; none at the end.

        What is taken must be given to `done`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._closed)
            return take_batch(self._messages, lambda message: len(message.frame.payload))

    def done(self, messages: list[Message]) -> None:
        """They have left."""
        for message in messages:
            message.release()
        with self._changed:
            before = self._bytes
            self._bytes -= sum(len(message.frame.payload) for message in messages)
            if self._bytes <= MAX_OUTBOX_BYTES < before:
                self._changed.notify_all()
