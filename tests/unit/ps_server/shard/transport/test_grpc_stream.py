"""The gRPC data carrier, server end: who says nothing, and who sends faster than frames are taken."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc.aio
import pytest

from ps_server.shard.shard import Shard
from ps_server.shard.traffic import Refused
from ps_server.shard.transport import grpc_stream
from ps_server.shard.transport.grpc_stream import INBOX_FRAMES, METHOD_NAME, METHOD_SERVICE, DataStreams
from ps_server.shard.transport.outbox import MessageOutbox
from tests.until import LIMIT_S


async def silent(shard: Shard) -> list[bytes]:
    """What comes over a stream on which nothing is said, until the server ends it."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((DataStreams(shard).handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(LIMIT_S):
            call = channel.stream_stream(f"/{METHOD_SERVICE}/{METHOD_NAME}")()
            return [message async for message in call]
    finally:
        await server.stop(None)


def test_a_connection_that_says_nothing_is_ended_in_time_and_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grpc_stream, "HELLO_LIMIT_S", 0.2)
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
    assert asyncio.run(silent(shard)) == []
    assert shard.refusals()[Refused.CONNECTION] == 1


class Slow:
    """Takes a frame when it may."""

    def __init__(self) -> None:
        self.may, self.ended = threading.Semaphore(0), threading.Event()

    def closed(self) -> None:
        self.ended.set()


def test_no_more_frames_are_read_than_may_wait_for_the_thread_that_takes_them(
    monkeypatch: pytest.MonkeyPatch,
):
    """HTTP/2 stops the sender then; with each that is taken one more comes in."""

    def taken(_message: bytes, receiver: Any) -> bool:
        return bool(receiver.may.acquire(timeout=LIMIT_S))

    async def fill() -> None:
        receiver = Slow()
        receiving: Any = receiver
        inbox = grpc_stream._Inbox(receiving, MessageOutbox(), asyncio.get_running_loop())
        for _ in range(INBOX_FRAMES):
            await inbox.put(b"")
        for _ in range(3):
            one_more = asyncio.create_task(inbox.put(b""))
            for _ in range(100):  # turns of the loop: whatever could go on has
                await asyncio.sleep(0)
            assert not one_more.done()
            receiver.may.release()
            async with asyncio.timeout(LIMIT_S):
                await one_more
        for _ in range(INBOX_FRAMES):
            receiver.may.release()
        inbox.close()
        assert await asyncio.to_thread(receiver.ended.wait, LIMIT_S)

    monkeypatch.setattr(grpc_stream, "deliver", taken)
    asyncio.run(fill())
