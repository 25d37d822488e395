"""Many calls at once, with messages that are the test's own bytes. What comes back is only counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeAlias

import grpc
import grpc.aio

from ps_wire.access.channel import CLIENT
from ps_wire.access.status import ERROR_KEY

from .mutation import Method, Mutation

Metadata: TypeAlias = tuple[tuple[str, str], ...]
AT_ONCE = 32
UNSENT = "Internal error from Core"  # grpc.aio's own words where a call is over while it sends a message
CALL_LIMIT_S = 1.0  # a stream that is taken lasts


async def storm(
    address: str,
    mutation: Mutation,
    count: int,
    *,
    callers: Sequence[Metadata],
    at_once: int = AT_ONCE,
    on_sent: Callable[[int], None] = lambda _: None,
) -> Counter[tuple[str, str]]:
    """Makes calls until `count` messages were sent.

    Args:
        address: of a server.
        mutation: draws what is sent, and whose token goes with it.
        count: of messages, at least.
        callers: what calls carry, in turn: the token of a job, that of nobody.
        at_once: of calls.
        on_sent: told how many there are so far.

    Returns:
        How often each call of the services ended with which error or status.
    """
    ended: Counter[tuple[str, str]] = Counter()
    sent = 0
    async with grpc.aio.insecure_channel(address, options=CLIENT) as channel:

        async def one_after_the_other(turn: int) -> None:
            nonlocal sent
            while sent < count:
                method = mutation.method()
                requests = mutation.requests(method)
                sent += len(requests)
                caller = callers[(sent + turn) % len(callers)]
                ended[method.path, await call(channel, method, requests, caller)] += 1
                on_sent(sent)

        await asyncio.gather(*map(one_after_the_other, range(at_once)))
    return ended


async def call(channel: grpc.aio.Channel, method: Method, requests: list[bytes], metadata: Metadata) -> str:
    """One call; the name of the error that it was refused with, or of the status that it ended with.

    What a call was refused with before all was sent, grpc.aio does not tell.
    """

    async def outgoing() -> AsyncIterator[bytes]:
        for request in requests:
            yield request

    if method.many:
        answers = channel.stream_stream(method.path)(outgoing(), metadata=metadata, timeout=CALL_LIMIT_S)
    else:
        answers = channel.unary_stream(method.path)(requests[0], metadata=metadata, timeout=CALL_LIMIT_S)
    try:
        async for _ in answers:
            pass
        return str((await answers.code()).name)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.INTERNAL and UNSENT in (error.details() or ""):
            return "before all was sent"
        named = dict(error.trailing_metadata() or ()).get(ERROR_KEY)
        return str(named or error.code().name)
