"""The end of an event loop that runs in a thread of a worker's process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class AtOnce(ThreadPoolExecutor):
    """Runs each function where it is submitted.

    Python's own thread pool takes nothing any more while the process ends, when a worker may still leave.
    """

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """The function's outcome."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - whoever awaits it gets it
            future.set_exception(error)
        return future


async def end_tasks() -> None:
    """Cancels all tasks of this loop but the one that asks, and waits for them."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
