"""The one place where errors become gRPC statuses: an interceptor around every unary answer.

Streams of members and data carry their refusals inside, as messages and frames.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from ps_server.log import logger
from ps_wire.errors import InternalError, PsError
from ps_wire.status import code_of, metadata_of


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Ends a call that raised with its status, and the error's class and facts as trailing metadata."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if handler.unary_unary is not None:
            return handler._replace(unary_unary=_answers_once(handler.unary_unary))
        if handler.stream_unary is not None:
            return handler._replace(stream_unary=_answers_once(handler.stream_unary))
        if handler.unary_stream is not None and handler.request_deserializer is not None:
            return handler._replace(unary_stream=_answers_often(handler.unary_stream))
        return handler


def _answers_once(method: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            return await method(request, context)
        except Exception as error:  # noqa: BLE001 - abort raises grpc's own, which passes through
            await _abort(error, context)

    return call


def _answers_often(
    method: Callable[[Any, Any], AsyncIterator[Any] | Awaitable[None]],
) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        try:
            replies = method(request, context)
            if inspect.isawaitable(replies):  # a method that writes its replies itself, as Health.Watch
                await replies
                return
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
        error = InternalError(f"{type(error).__name__}: {error}")
    await context.abort(code_of(error), error.message, metadata_of(error))
