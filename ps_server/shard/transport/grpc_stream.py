"""The gRPC data carrier, server end: raw frames over one bidirectional stream per worker.

No protobuf touches the payload: the stream's messages are the frames themselves. The event loop only moves
bytes; every connection has a thread that takes its frames, so that sums and optimizers (which release the
GIL) run beside each other and never hold up a heartbeat. At most `INBOX_FRAMES` received frames wait for
that thread; then the stream is no longer read and HTTP/2 flow control stops the sender. A reply is copied
when its turn has come.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from functools import partial

import grpc
import grpc.aio

from ps_server.log import logger
from ps_server.rpc.greeting import HELLO_LIMIT_S, Greeting
from ps_server.shard.connection_tokens import TOKEN_BYTES
from ps_server.shard.shard import Shard
from ps_server.shard.traffic import Refused
from ps_server.shard.transport.outbox import MessageOutbox
from ps_server.shard.transport.session import Session
from ps_wire.frames.carrier import Carrier, Receiver, deliver
from ps_wire.process import watched

METHOD_SERVICE = "ps_wire.v1.Shard"
METHOD_NAME = "Data"
INBOX_FRAMES = 2


class _Signal:
    """Wakes a coroutine from any thread, with one call of its loop for all who signal meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self._is_set = False

    def set(self) -> None:
        """Any thread."""
        if not self._is_set:
            self._is_set = True
            _call(self._loop, self._event.set)

    async def wait(self) -> None:
        """Until somebody has signalled since the last time."""
        await self._event.wait()
        self._event.clear()
        self._is_set = False


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        if not loop.is_closed():  # else the process ends
            raise


class DataStreams:
    """Makes the handler of the stream."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._strangers = Greeting(partial(shard.count_refused, Refused.CONNECTION))
        self._open: set[MessageOutbox] = set()

    def close(self) -> None:
        """Ends every stream once what is queued is out."""
        for outbox in self._open:
            outbox.close()

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to add to a server: identity serializers, so that messages stay bytes."""
        method = grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.method_handlers_generic_handler(METHOD_SERVICE, {METHOD_NAME: method})

    async def _stream(self, _messages: object, context: grpc.aio.ServicerContext) -> None:
        loop = asyncio.get_running_loop()
        signal = _Signal(loop)
        outbox = MessageOutbox(on_change=signal.set, on_broken=lambda: _call(loop, writing.cancel))
        writing = loop.create_task(_write(outbox, signal, context))
        session = Session(self._shard, outbox, token_bytes=TOKEN_BYTES, carrier=Carrier.GRPC)
        inbox = _Inbox(session, outbox, loop)
        reading = watched.task(
            "reading a data stream",
            self._read(context, inbox, outbox),
            log=logger,
            failed=lambda _: outbox.sever(),  # else the peer would wait for ever
        )
        self._open.add(outbox)
        try:
            await writing
        except asyncio.CancelledError:
            if not outbox.broken:
                raise
            reading.cancel()
            await asyncio.wait([reading])  # else its read ends with the abort, as if that were a bug
            await context.abort(grpc.StatusCode.ABORTED, "this connection was cut off")
        finally:
            self._open.discard(outbox)
            reading.cancel()
            outbox.sever()
            inbox.close()

    async def _read(self, context: grpc.aio.ServicerContext, inbox: _Inbox, outbox: MessageOutbox) -> None:
        self._strangers.enter(outbox, outbox.sever)
        try:
            async with asyncio.timeout(HELLO_LIMIT_S):
                message = await context.read()
                if message is not grpc.aio.EOF:
                    await inbox.put(message)
                    await inbox.idle()
        except TimeoutError:
            self._shard.count_refused(Refused.CONNECTION)
            inbox.close()
            return
        finally:
            self._strangers.leave(outbox)
        while message is not grpc.aio.EOF:
            message = await context.read()
            if message is not grpc.aio.EOF:
                await inbox.put(message)
        inbox.close()


async def _write(outbox: MessageOutbox, signal: _Signal, context: grpc.aio.ServicerContext) -> None:
    """Writes what is queued, until nothing is any more."""
    while True:
        closed = outbox.closed
        while messages := outbox.poll():
            try:
                for message in messages:
                    await context.write(message.encoded())
            finally:
                outbox.done(messages)
        if closed:
            return
        await signal.wait()


class _Inbox:
    """Received frames and the thread that takes them."""

    def __init__(self, receiver: Receiver, outbox: MessageOutbox, loop: asyncio.AbstractEventLoop) -> None:
        self._receiver = receiver
        self._outbox = outbox
        self._loop = loop
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(INBOX_FRAMES)
        self._pending = 0
        self._idle = asyncio.Event()
        watched.thread("ps-data", self._run, log=logger).start()

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
                _call(self._loop, self._taken)
                if not goes_on:
                    break
        finally:
            self._receiver.closed()
            self._outbox.close()

    def _taken(self) -> None:
        self._pending -= 1
        self._room.release()
        if self._pending == 0:
            self._idle.set()
