"""A server of one shard inside the process of its only worker, without a socket.

The entry point `ps.local_server`. The coordinator and the shard are those of `ps-server`; calls run on an
event loop in a thread of its own, and frames go through `memory_stream`. The process's settings stay as they
are: torch's threads, signals, logging.

Invariant: leaving starts no thread, so that a worker can still leave while Python shuts down.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, Self

from ps_server.coordinator.coordinator import Coordinator
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.coordinator.fleet.generations import Generations
from ps_server.log import logger
from ps_server.process.hosted_shard import HostedShard
from ps_server.process.own_loop import AtOnce, end_tasks
from ps_server.process.shard_zero import ShardZero
from ps_server.shard.connection_tokens import TOKEN_BYTES
from ps_server.shard.service import ShardService
from ps_server.shard.shard import Shard
from ps_server.shard.transport.memory_stream import MemoryStream
from ps_server.shard.transport.session import Session
from ps_wire.access.access import Access
from ps_wire.errors import InternalError, PsError, ServerNotReady, ServerUnreachable
from ps_wire.frames.carrier import MEMORY, Outlet, Receiver
from ps_wire.frames.service import FramesOut, Landing
from ps_wire.frames.terms import whole
from ps_wire.process import watched
from ps_wire.snapshot.snapshot_options import SnapshotOptions
from ps_wire.v1 import coordinator_pb2, shard_pb2

ADDRESS = "this process"


class LocalService:
    """A `ps_wire.frames.service.Service`. It serves from when it is made until `close`."""

    def __init__(self) -> None:
        self.addresses = (ADDRESS,)
        self.carriers = (MEMORY,)
        self._loop = asyncio.new_event_loop()
        at_once = AtOnce()
        self._loop.set_default_executor(at_once)
        self._thread = watched.thread("ps-local", self._run, log=logger)
        shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
        service = ShardService(shard, carriers=[shard_pb2.Carrier(name=MEMORY)], pool=at_once)
        service.ready = True
        services = coordinator_pb2.DESCRIPTOR.services_by_name, shard_pb2.DESCRIPTOR.services_by_name
        generations = Generations(None)
        own = ShardZero(shard, generations.own)
        coordinator = Coordinator(Fleet(own, ADDRESS, self._loop, generations, at_once))
        self.coordinator = _Calls(coordinator.service, services[0]["Coordinator"], self._loop)
        self._calls = _Calls(service, services[1]["Shard"], self._loop)
        self._shard: Shard | None = shard
        self._thread.start()

    @staticmethod
    def beside_others(
        shard: int, num_shards: int, coordinator: str | None, access: Access, snapshots: SnapshotOptions
    ) -> HostedShard:
        """One of several shards, each in a process of its own; see `HostedShard`."""
        return HostedShard(shard, num_shards, coordinator, access, snapshots)

    def shard(self, index: int) -> _Calls:
        """See `Service.shard`."""
        assert index == 0
        return self._calls

    def stream(
        self,
        shard: int,
        frames: FramesOut,
        offer: shard_pb2.Carrier,
        *,
        landing: Landing,  # noqa: ARG002 - replies are copied when they are made
        limit_s: float,  # noqa: ARG002 - it is there
    ) -> MemoryStream:
        """See `Service.stream`."""
        assert shard == 0, offer
        return MemoryStream(map(whole, frames), self._accept)

    def _accept(self, outlet: Outlet) -> Receiver:
        shard = self._shard  # another thread may close
        if shard is None:
            raise ServerNotReady("the server in this process has stopped")
        return Session(shard, outlet, token_bytes=TOKEN_BYTES)

    def move(self, shard: int, address: str) -> None:
        """See `Service.move`: it is in this process."""
        raise AssertionError((shard, address))

    def close(self) -> None:
        """See `Service.close`: its thread has ended then, and its memory is free."""
        if self._shard is None:
            return
        self._shard = None
        self.coordinator.close()
        self._calls.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(end_tasks())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


class _Calls:
    """The methods of a servicer, called on its loop from another thread: `CoordinatorCalls`, `ShardCalls`.

    `_lock` guards `_servicer`, and is held while a call is put on the loop: none comes there after `close`,
    when the loop ends, so each has an answer.
    """

    def __init__(self, servicer: Any, descriptor: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._lock = threading.Lock()
        self._servicer = servicer
        self._descriptor = descriptor
        self._loop = loop

    def close(self) -> None:
        """Lets go of the servicer; calls are refused from now on."""
        with self._lock:
            self._servicer = None

    def __getattr__(self, name: str, /) -> Callable[..., Any]:
        method = self._descriptor.methods_by_name.get(name)
        if method is None:
            raise AttributeError(name)

        def call(given: Any, *, timeout: float | None = None, wait_for_ready: bool = True) -> Any:
            del wait_for_ready  # it is
            with self._lock:
                if self._servicer is None:
                    raise ServerUnreachable("the server in this process has stopped: this worker has left")
                if method.client_streaming:
                    given = _Requests(given, self._loop)
                answer = getattr(self._servicer, name)(given, None)
                if method.server_streaming:
                    return _Replies(answer, name, timeout, self._loop)
                answered = asyncio.run_coroutine_threadsafe(_named(answer, name, timeout), self._loop)
            try:
                return answered.result()
            except CancelledError:
                raise ServerNotReady("the server in this process has stopped") from None

        return call


async def _named(answer: Coroutine[Any, Any, Any], name: str, limit_s: float | None) -> Any:
    """Awaits a call; every error of it is a `PsError`."""
    try:
        async with asyncio.timeout(limit_s):
            return await answer
    except PsError:
        raise
    except TimeoutError:
        raise ServerUnreachable(f"the server in this process did not answer {name} in {limit_s} s") from None
    except Exception as error:
        logger.exception("bug while answering %s", name)
        raise InternalError.of(error) from error


class _Requests:
    """Messages of a blocking iterator, for the event loop; a thread waits for them."""

    def __init__(self, messages: Iterator[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._messages = messages
        self._loop = loop
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        watched.thread("ps-requests", self._pump, log=logger).start()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self._queue.get()
        if message is None:
            self._queue.put_nowait(None)
            raise StopAsyncIteration
        return message

    def _pump(self) -> None:
        try:
            for message in self._messages:
                self._loop.call_soon_threadsafe(self._queue.put_nowait, message)
            self._loop.call_soon_threadsafe(self._queue.put_nowait, None)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


class _Replies:
    """The items that an asynchronous generator yields on the event loop, for another thread."""

    def __init__(
        self, replies: AsyncIterator[Any], name: str, limit_s: float | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._queue: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._replies = replies
        asyncio.run_coroutine_threadsafe(self._collect(name, limit_s), loop)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        reply, end = self._queue.get()
        if end is None:
            return reply
        self._queue.put((None, end))
        raise end

    def cancel(self) -> None:
        """Whoever waits for a reply is told that there are no more."""
        self._queue.put((None, ServerNotReady("the call was ended")))

    async def _collect(self, name: str, limit_s: float | None) -> None:
        end: BaseException = ServerNotReady("the server in this process has stopped")
        try:
            await _named(self._pass_on(), name, limit_s)
            end = StopIteration()
        except PsError as error:
            end = error
        finally:
            self._queue.put((None, end))

    async def _pass_on(self) -> None:
        async for reply in self._replies:
            self._queue.put((reply, None))
