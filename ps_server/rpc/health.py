"""The standard gRPC health service, which answers without a token: so what a stranger costs there is bounded.

A name is read by few calls at a time, each for a moment: else messages of 16 MiB that never become whole fill
memory. Few calls watch. Who is one too many ends the oldest, which is the least likely to be a probe. Used on
the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2

from ps_server.rpc.greeting import Greeting
from ps_wire.frames.messages import NO_MESSAGE

MAX_READING = 16  # calls whose name has not come; each may hold a message of 16 MiB
READ_LIMIT_S = 5.0
MAX_NAME_BYTES = 256
MAX_WATCHING = 64

_Status = health_pb2.HealthCheckResponse


class Health:
    """The health service of this process, with bounds on what strangers ask of it."""

    def __init__(self, on_refused: Callable[[], None]) -> None:
        """Serves nothing yet; `on_refused` counts who has to go."""
        self._statuses: dict[str, int] = {health.OVERALL_HEALTH: _Status.SERVING}
        self._changed = asyncio.Event()
        self._over = False
        self._reading = Greeting(on_refused, most=MAX_READING)
        self._watching = Greeting(on_refused, most=MAX_WATCHING)

    def set(self, name: str, status: int) -> None:
        """From now on this is said of that name; nothing but NOT_SERVING after `end`."""
        self._statuses[name] = _Status.NOT_SERVING if self._over else status
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """The server stops: it serves nothing any more, whatever is set."""
        self._over = True
        for name in self._statuses:
            self.set(name, _Status.NOT_SERVING)

    def handler(self) -> grpc.GenericRpcHandler:
        """To add to a server. The calls take bytes, so that a name is read when its turn has come."""
        calls = {"Check": self._check, "Watch": self._watch}
        methods = {name: grpc.stream_stream_rpc_method_handler(call) for name, call in calls.items()}
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)

    async def _check(self, _messages: object, context: grpc.aio.ServicerContext) -> None:
        status = self._statuses.get(await self._name(context))
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is nothing of this name here")
        await context.write(_Status(status=status).SerializeToString())

    async def _watch(self, _messages: object, context: grpc.aio.ServicerContext) -> None:
        name = await self._name(context)
        gone = asyncio.Event()
        self._watching.enter(gone, gone.set)
        said = None
        try:
            while not gone.is_set():
                changed = self._changed
                status = self._statuses.get(name, _Status.SERVICE_UNKNOWN)
                if status != said:
                    await context.write(_Status(status=status).SerializeToString())
                said = status
                await _first_of(changed, gone)
        finally:
            self._watching.leave(gone)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {MAX_WATCHING} calls watch")

    async def _name(self, context: grpc.aio.ServicerContext) -> str:
        reading = asyncio.ensure_future(context.read())
        self._reading.enter(reading, reading.cancel)
        try:
            await asyncio.wait([reading], timeout=READ_LIMIT_S)
        finally:
            self._reading.leave(reading)
            done = reading.done() and not reading.cancelled()
            reading.cancel()
        if not done:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "the name did not come in time, or newcomers came"
            )
        data = reading.result()
        if data is grpc.aio.EOF or len(data) > MAX_NAME_BYTES:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"a name, of at most {MAX_NAME_BYTES} bytes, is expected"
            )
        try:
            return str(health_pb2.HealthCheckRequest.FromString(data).service)
        except NO_MESSAGE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no HealthCheckRequest")
        raise AssertionError  # abort raises


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
