"""The carrier inside one process: encoded frames handed from thread to thread, without a socket.

The same bytes go to the same `Receiver` as over any carrier. One thread, `ps-data`, encodes the frames that a
worker sends, one by one, and gives each to the receiver before it takes the next: one payload is under way.
Replies are encoded where the worker reads them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Self

from ps_server.log import logger
from ps_server.shard.transport.outbox import MessageOutbox
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Outlet, Receiver, deliver
from ps_wire.process import watched


class MessageStream:
    """Messages both ways: an iterator over the replies. `cancel` is thread-safe."""

    def __init__(self, messages: Iterator[bytes], accept: Callable[[Outlet], Receiver]) -> None:
        """Starts the thread that takes `messages` until they end.

        Args:
            messages: encoded frames.
            accept: makes the server's end of the connection, which answers through the outlet.
        """
        self._messages = messages
        self._outbox = MessageOutbox()
        self._read: deque[bytes] = deque()  # replies that have left the outbox
        self._cancelled = False
        receiver = accept(self._outbox)  # the thread's alone: it goes with it
        watched.thread("ps-data", partial(self._run, receiver), log=logger).start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        if not self._read:
            messages = self._outbox.next()
            self._read += [message.encoded() for message in messages]
            self._outbox.done(messages)
        if self._cancelled or not self._read:
            raise StopIteration
        return self._read.popleft()

    def cancel(self) -> None:
        """Takes no further message and gives no further reply."""
        self._cancelled = True
        self._outbox.sever()

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
