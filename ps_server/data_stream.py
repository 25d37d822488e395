"""The gRPC data carrier, server end: raw frames over one bidirectional stream per worker.

No protobuf touches the payload: the stream's messages are the frames themselves. The event loop only moves
bytes; every connection has a thread that takes its frames, so that sums and optimizers (which release the
GIL) run beside each other and never hold up a heartbeat. At most `INBOX_FRAMES` received frames wait for
that thread; then the stream is no longer read and HTTP/2 flow control stops the sender.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable

import grpc
import grpc.aio

from ps_server.session import HELLO_LIMIT_S, MAX_OUTBOX_FRAMES, MAX_STRANGERS, Session
from ps_server.shard import TOKEN_BYTES, Shard
from ps_wire.carrier import Carrier, Message, Receiver, deliver

METHOD_SERVICE = "ps_wire.v1.Shard"
METHOD_NAME = "Data"
INBOX_FRAMES = 2


class _Outbox:
    """Frames on their way out; an `Outlet`. `send` may be called on any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._frames: deque[bytes] = deque()
        self._signalled = False
        self._closed = False
        self._wake = asyncio.Event()

    def send(self, message: Message) -> None:
        """See `Outlet.send`."""
        if self._closed:
            return
        self._frames.append(message.encoded())
        if not self._signalled:
            self._signalled = True
            self._call(self._wake.set)

    def close(self) -> None:
        """No more frames; `drain` ends once those queued are out. Any thread."""
        self._closed = True
        self._call(self._wake.set)

    def _call(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed: the process ends
            self._closed = True

    async def drain(self, context: grpc.aio.ServicerContext) -> None:
        """Writes frames until closed."""
        while True:
            self._signalled = False
            self._wake.clear()
            if len(self._frames) > MAX_OUTBOX_FRAMES:
                return
            while self._frames:
                await context.write(self._frames.popleft())
            if self._closed:
                return
            if not self._frames:
                await self._wake.wait()


class DataStreams:
    """Makes the handler of the stream and bounds the number of strangers."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._strangers = 0
        self._open: set[_Outbox] = set()

    def close(self) -> None:
        """Ends every stream once what is queued is out."""
        for outbox in self._open:
            outbox.close()

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to add to a server: identity serializers, so that messages stay bytes."""
        method = grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.method_handlers_generic_handler(METHOD_SERVICE, {METHOD_NAME: method})

    async def _stream(self, _messages: object, context: grpc.aio.ServicerContext) -> None:
        if self._strangers >= MAX_STRANGERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many connections without HELLO")
        loop = asyncio.get_running_loop()
        outbox = _Outbox(loop)
        session = Session(
            self._shard,
            outbox,
            token_bytes=TOKEN_BYTES,
            carrier=Carrier.GRPC,
        )
        inbox = _Inbox(session, outbox, loop)
        reading = loop.create_task(self._read(context, inbox))
        self._open.add(outbox)
        try:
            await outbox.drain(context)
        finally:
            self._open.discard(outbox)
            reading.cancel()
            outbox.close()
            inbox.close()

    async def _read(self, context: grpc.aio.ServicerContext, inbox: _Inbox) -> None:
        self._strangers += 1
        try:
            async with asyncio.timeout(HELLO_LIMIT_S):
                message = await context.read()
                if message is not grpc.aio.EOF:
                    await inbox.put(message)
                    await inbox.idle()
        except TimeoutError:
            self._shard.count_refused()
            inbox.close()
            return
        finally:
            self._strangers -= 1
        while message is not grpc.aio.EOF:
            message = await context.read()
            if message is not grpc.aio.EOF:
                await inbox.put(message)
        inbox.close()


class _Inbox:
    """Received frames and the thread that takes them."""

    def __init__(self, receiver: Receiver, outbox: _Outbox, loop: asyncio.AbstractEventLoop) -> None:
        self._receiver = receiver
        self._outbox = outbox
        self._loop = loop
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(INBOX_FRAMES)
        self._pending = 0
        self._idle = asyncio.Event()
        threading.Thread(target=self._run, name="ps-data", daemon=True).start()

    async def put(self, message: bytes) -> None:
        """Waits for room, then hands the frame over."""
        await self._room.acquire()
        self._pending += 1
        self._idle.clear()
        self._frames.put(message)

    async def idle(self) -> None:
        """Waits until every frame handed over was taken."""
        await self._idle.wait()

    def close(self) -> None:
        """No more frames: the thread takes what is there and ends."""
        self._frames.put(None)

    def _run(self) -> None:
        try:
            while (message := self._frames.get()) is not None:
                goes_on = deliver(message, self._receiver)
                del message  # a frame may be all that keeps 8 MiB alive
                self._loop.call_soon_threadsafe(self._taken)
                if not goes_on:
                    break
        except RuntimeError:
            if not self._loop.is_closed():
                raise
        finally:
            self._receiver.closed()
            self._outbox.close()

    def _taken(self) -> None:
        self._pending -= 1
        self._room.release()
        if self._pending == 0:
            self._idle.set()
