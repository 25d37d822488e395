"""Messages on their way out of one connection, over any carrier, and when they leave.

They are held, not copied. From a peer that has `MAX_OUTBOX_BYTES` to read nothing is taken (`wait_room`);
what others do may still add to it, at most a reply for each partition that it had asked for. One that has
`MAX_OUTBOX_FRAMES` to read is cut off.

Whoever handles several frames or steps in a row does so `corked`: what it sends meanwhile leaves at the end,
together, so that threads and peers are woken once and not for each frame.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter

from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Message
from ps_wire.frames.queue import FrameQueue
from ps_wire.frames.shared_place import SharedPlace
from ps_wire.sockets.frame_socket import pop_batch

MAX_OUTBOX_BYTES = 64 << 20
MAX_OUTBOX_FRAMES = 200_000  # honest peers have one reply a partition
FRAME_BYTES = 1 << 10  # that a message takes beside its payload, roughly


class _Cork(threading.local):
    waiting: dict[MessageOutbox, None] | None = None  # outboxes that have something to send, in order


_cork = _Cork()


@contextmanager
def corked() -> Iterator[None]:
    """Holds what this thread sends inside until the end."""
    if _cork.waiting is not None:
        yield
        return
    waiting: dict[MessageOutbox, None] = {}
    _cork.waiting = waiting
    try:
        yield
    finally:
        _cork.waiting = None
        _wake(waiting)


def _wake(waiting: dict[MessageOutbox, None]) -> None:
    for outbox in waiting:
        outbox.wake()


def _nothing() -> None:
    pass


class MessageOutbox:
    """The queue of messages out of one connection.

    An `Outlet`; it holds each message until it has left, or nothing leaves.

    Who writes waits for messages (`next`), or takes what is there when it is called (`on_change`, `poll`).

    Attributes:
        broken: nothing leaves any more.
        closed: nothing is queued any more.
        sent_bytes: see `Outlet`.
    """

    def __init__(
        self, *, on_broken: Callable[[], None] = _nothing, on_change: Callable[[], None] = _nothing
    ) -> None:
        """Empty.

        Args:
            on_broken: ends the connection, whoever uses it. On any thread, under locks: it must not block.
            on_change: something is to leave, or nothing is queued any more. Likewise.
        """
        self.broken = False
        self.closed = False
        self.sent_bytes = 0
        self._on_broken = on_broken
        self._on_change = on_change
        self._changed = threading.Condition()  # guards what follows, and those above
        self._messages: FrameQueue[Message] = FrameQueue(
            attrgetter("frame"), bulk=wire.Kind.PULLED, others_wait=False
        )
        self._bytes = 0

    def send(self, message: Message) -> None:
        """See `Outlet.send`."""
        with self._changed:
            if len(self._messages) >= MAX_OUTBOX_FRAMES:
                self._sever()
            if self.closed:
                return
            self._bytes += _bytes_of(message)
            self.sent_bytes += len(message.frame.payload)
            message.hold()
            self._messages.append(message)
            if _cork.waiting is None:
                self._wake()
            else:
                _cork.waiting[self] = None

    def write_along(
        self,
        table: int,  # noqa: ARG002
        partition: int,  # noqa: ARG002
        version: int,  # noqa: ARG002
        write: Callable[[SharedPlace], bool],  # noqa: ARG002
    ) -> bool:
        """See `Outlet.write_along`: who reads here waits for payloads."""
        return False

    @property
    def queued_bytes(self) -> int:
        """See `Outlet`."""
        return self._bytes

    def wake(self) -> None:
        """Lets what was sent corked leave now."""
        with self._changed:
            self._wake()

    def close(self) -> None:
        """No more messages; those queued still leave. Any thread."""
        with self._changed:
            self.closed = True
            self._wake()

    def sever(self) -> None:
        """See `Outlet.sever`."""
        with self._changed:
            self._sever()

    def _sever(self) -> None:
        if self.broken:
            return
        self.broken = self.closed = True
        while self._messages:
            self._forget(self._messages.popleft())
        self._wake()
        self._on_broken()

    def _wake(self) -> None:
        self._changed.notify_all()
        self._on_change()

    def _forget(self, message: Message) -> None:
        message.release()
        self._bytes -= _bytes_of(message)

    def wait_room(self) -> None:
        """See `Outlet.wait_room`."""
        if self._bytes <= MAX_OUTBOX_BYTES:
            return
        if _cork.waiting:  # nobody waits for this peer
            _wake(_cork.waiting)
            _cork.waiting.clear()
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._bytes <= MAX_OUTBOX_BYTES)

    def next(self) -> list[Message]:
        """Waits for messages, weights of first layers first; none at the end.

        What is taken must be given to `done`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self.closed)
            return self._pop_batch()

    def poll(self) -> list[Message]:
        """As `next`, and none if there is nothing now."""
        with self._changed:
            return self._pop_batch()

    def _pop_batch(self) -> list[Message]:
        return pop_batch(self._messages, lambda message: len(message.frame.payload))

    def done(self, messages: list[Message]) -> None:
        """They have left."""
        with self._changed:
            before = self._bytes
            for message in messages:
                self._forget(message)
            if self._bytes <= MAX_OUTBOX_BYTES < before:
                self._changed.notify_all()


def _bytes_of(message: Message) -> int:
    return FRAME_BYTES + len(message.frame.payload)
