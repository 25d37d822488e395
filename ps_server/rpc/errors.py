"""The one place where errors become gRPC statuses: an interceptor around every call.

It parses requests, too (`pieces`), so that bytes that are no message are the caller's error, not a bug of
ours. Streams of members and data carry their refusals inside, as messages and frames.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import grpc
import grpc.aio

from ps_server.log import logger
from ps_server.rpc import pieces
from ps_wire.access.status import code_of, metadata_of
from ps_wire.errors import FrameMalformed, FrameTooLarge, InternalError, PsError
from ps_wire.frames.messages import NO_MESSAGE
from ps_wire.text import one_line

MAX_DETAILS = 1000  # characters: a client takes no more than 8 KiB of metadata
MAX_REQUEST_BYTES = 1 << 20  # but for `LARGE`: a message takes up to forty times as much memory as bytes
LARGE = (
    "Member",
    "Follow",
    "PutState",
    "LoadState",
    "PutSnapshot",
)  # tables, what shards say, pieces of state

_Parse = Callable[[bytes], Awaitable[Any]]


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Ends a call that raised with its status, and the error's class and facts as trailing metadata."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:  # frames, which are no protobuf
            return handler
        parse = _parsing(handler.request_deserializer, handler_call_details.method)
        plain = handler._replace(request_deserializer=None)
        if handler.unary_unary is not None:
            return plain._replace(unary_unary=_answers_once(handler.unary_unary, parse))
        if handler.stream_unary is not None:
            return plain._replace(stream_unary=_answers_once(handler.stream_unary, _each(parse)))
        if handler.unary_stream is not None:
            return plain._replace(unary_stream=_answers_often(handler.unary_stream, parse))
        return plain._replace(stream_stream=_answers_often(handler.stream_stream, _each(parse)))


def _parsing(deserialize: Callable[[bytes], Any], method: str) -> _Parse:
    small = method.rpartition("/")[2] not in LARGE

    async def parse(data: bytes) -> Any:
        if small and len(data) > MAX_REQUEST_BYTES:
            raise FrameTooLarge(f"{method}: {len(data)} bytes, at most {MAX_REQUEST_BYTES} are taken")
        try:
            return await pieces.parse(deserialize, data)
        except NO_MESSAGE as error:
            raise FrameMalformed(f"{method}: {len(data)} bytes that are no such message: {error}") from None

    return parse


def _each(parse: _Parse) -> Callable[[AsyncIterator[bytes]], Awaitable[AsyncIterator[Any]]]:
    async def each(messages: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        with suppress(grpc.aio.BaseError):  # the call is over, or the server has stopped: nothing more comes
            async for data in messages:
                yield await parse(data)

    async def parsed(messages: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        return each(messages)

    return parsed


def _answers_once(
    method: Callable[[Any, Any], Awaitable[Any]], parse: Callable[[Any], Awaitable[Any]]
) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            return await method(await parse(request), context)
        except Exception as error:  # noqa: BLE001 - abort raises grpc's own, which passes through
            await _abort(error, context)

    return call


def _answers_often(
    method: Callable[[Any, Any], AsyncIterator[Any] | Awaitable[None]],
    parse: Callable[[Any], Awaitable[Any]],
) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        try:
            replies = method(await parse(request), context)
            if inspect.isawaitable(replies):  # a method that writes its replies itself, as Health.Watch
                await replies
                return
            async with aclosing(replies):  # type: ignore[type-var]  # all of them are generators
                async for reply in replies:
                    yield reply
        except Exception as error:  # noqa: BLE001
            await _abort(error, context)

    return call


async def _abort(error: Exception, context: grpc.aio.ServicerContext) -> None:
    if isinstance(error, grpc.aio.AbortError | grpc.aio.BaseError):
        raise error
    if not isinstance(error, PsError):
        logger.exception("bug while answering a call", exc_info=error)
        error = InternalError.of(error)
    await context.abort(code_of(error), one_line(error.message, MAX_DETAILS), metadata_of(error))
