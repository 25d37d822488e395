"""The carrier inside one process: encoded frames handed from thread to thread, without a socket.

The same bytes go to the same `Receiver` as over any carrier. One thread, `ps-data`, encodes the frames that a
worker sends, one by one, and gives each to the receiver before it takes the next: one payload is under way.
Replies are queued, for an `Outlet` never blocks; a worker that does not read `MAX_QUEUED` of them is cut off.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Self

from ps_wire import frame as wire
from ps_wire.carrier import Message, Outlet, Receiver, deliver

MAX_QUEUED = 200_000  # replies; an honest worker has one a partition


class _Outbox:
    """Replies on their way to the worker; an `Outlet`."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closed = False

    def send(self, message: Message) -> None:
        """See `Outlet.send`."""
        if self._messages.qsize() >= MAX_QUEUED:
            self.close()
        if not self._closed:
            self._messages.put(message.encoded())

    def receive(self) -> bytes | None:
        """Waits for the next reply; None at the end, and from then on."""
        message = self._messages.get()
        if message is None:
            self._messages.put(None)
        return message

    def close(self) -> None:
        """Ends the replies behind those that are queued. Any thread."""
        self._closed = True
        self._messages.put(None)


class MessageStream:
    """Messages both ways: an iterator over the replies. `cancel` is thread-safe."""

    def __init__(self, messages: Iterator[bytes], accept: Callable[[Outlet], Receiver]) -> None:
        """Starts the thread that takes `messages` until they end.

        Args:
            messages: encoded frames.
            accept: makes the server's end of the connection, which answers through the outlet.
        """
        self._messages = messages
        self._outbox = _Outbox()
        self._cancelled = False
        receiver = accept(self._outbox)  # the thread's alone: it goes with it
        threading.Thread(target=self._run, args=(receiver,), name="ps-data", daemon=True).start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        message = None if self._cancelled else self._outbox.receive()
        if message is None or self._cancelled:
            raise StopIteration
        return message

    def cancel(self) -> None:
        """Takes no further message and gives no further reply."""
        self._cancelled = True
        self._outbox.close()

    def _run(self, receiver: Receiver) -> None:
        try:
            for message in self._messages:
                if self._cancelled or not deliver(message, receiver):
                    break
                del message  # a message may be all that keeps 8 MiB alive
        finally:
            receiver.closed()
            self._outbox.close()


class MemoryStream:
    """A `DataStream` over a `MessageStream`."""

    def __init__(self, frames: Iterator[wire.Frame], accept: Callable[[Outlet], Receiver]) -> None:
        self._messages = MessageStream(map(wire.encode, frames), accept)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> wire.Frame:
        return wire.decode(next(self._messages))

    def cancel(self) -> None:
        """See `DataStream.cancel`."""
        self._messages.cancel()

    close = cancel
