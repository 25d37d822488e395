"""What ends a call from outside: the server stops while a message is awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest

from ps_server.rpc.errors import MAX_REQUEST_BYTES, ErrorInterceptor, _parsing
from ps_wire.errors import FrameMalformed
from ps_wire.v1 import coordinator_pb2 as pb


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


async def test_text_that_is_no_utf_8_is_refused_whichever_protobuf_is_installed() -> None:
    """Its Python implementation raises what `bytes.decode` does."""
    parse = _parsing(lambda data: data.decode(), "/service/Share")
    with pytest.raises(FrameMalformed, match="/service/Share: 1 bytes that are no such message"):
        await parse(b"\xff")


@pytest.mark.parametrize(("name", "taken"), [("Share", False), ("Read", False), ("Member", True)])
async def test_a_message_that_is_large_is_parsed_only_where_some_are(name: str, taken: bool) -> None:
    """Parsed, it takes up to forty times its bytes, and the loop as long as that takes."""
    message = pb.StateChunk(data=bytes(MAX_REQUEST_BYTES))
    handler = grpc.stream_stream_rpc_method_handler(repeat, request_deserializer=pb.StateChunk.FromString)

    async def continuation(_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return handler

    async def large() -> AsyncIterator[bytes]:
        yield message.SerializeToString()

    class Context:
        async def abort(self, code: grpc.StatusCode, details: str, _metadata: object) -> None:
            raise grpc.aio.AbortError(code, details)

    details = SimpleNamespace(method=f"/service/{name}")
    wrapped = await ErrorInterceptor().intercept_service(continuation, details)
    if taken:
        assert [it async for it in wrapped.stream_stream(large(), Context())] == [message]
        return
    with pytest.raises(grpc.aio.AbortError) as refused:
        assert not [it async for it in wrapped.stream_stream(large(), Context())]
    assert refused.value.args[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert f"at most {MAX_REQUEST_BYTES} are taken" in refused.value.args[1]
