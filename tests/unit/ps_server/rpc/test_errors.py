"""What ends a call from outside: the server stops while a message is awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest

from ps_server.rpc.errors import ErrorInterceptor


class Stopped(grpc.aio.BaseError):
    """As gRPC's own, which it does not show."""


async def messages() -> AsyncIterator[bytes]:
    yield b"1"
    raise Stopped("Server already stopped.")


async def count(numbers: AsyncIterator[int], _context: object) -> int:
    return sum([number async for number in numbers])


async def repeat(numbers: AsyncIterator[int], _context: object) -> AsyncIterator[int]:
    async for number in numbers:
        yield number


@pytest.mark.parametrize("method", [count, repeat])
async def test_a_stream_of_a_server_that_has_stopped_is_at_its_end(
    method: object, caplog: pytest.LogCaptureFixture
) -> None:
    """For whoever reads it, as if the peer were gone; it is no bug that is logged with its stack."""
    make = grpc.stream_unary_rpc_method_handler if method is count else grpc.stream_stream_rpc_method_handler
    handler = make(method, request_deserializer=int)

    async def continuation(_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return handler

    details = SimpleNamespace(method="/service/method")
    wrapped = await ErrorInterceptor().intercept_service(continuation, details)
    if method is count:
        assert await wrapped.stream_unary(messages(), None) == 1
    else:
        assert [reply async for reply in wrapped.stream_stream(messages(), None)] == [1]
    assert caplog.text == ""
