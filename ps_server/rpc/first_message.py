"""The first message of a stream to the coordinator: it comes soon, or the peer comes again.

It must not know what the message is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ps_wire.errors import ConnectionLost

Message = TypeVar("Message")


async def first_message(message: Awaitable[Message], limit_s: float) -> Message:
    """Waits for it; what it raises is raised.

    Raises:
        ConnectionLost: it did not come within `limit_s`: its host or network is busy, if it is no stranger.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await message
    except TimeoutError:
        raise ConnectionLost(f"this stream began with nothing for {limit_s:g} s") from None
