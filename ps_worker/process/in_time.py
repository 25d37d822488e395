"""A limit for calls of a library that have none where a peer falls silent, and that Ctrl-C does not end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ps_wire.process import watched

logger = logging.getLogger("ps_worker")

Result = TypeVar("Result")


def in_time(name: str, call: Callable[[], Result], limit_s: float) -> Result:
    """Makes a call in a thread of its own and waits for it, at most `limit_s`; what it raises is raised.

    Args:
        name: of the thread, for people.
        call: releases the interpreter's lock while it waits. One that is too late goes on in its thread,
            which keeps no process from ending, and what comes of it is dropped.
        limit_s: seconds.

    Raises:
        TimeoutError: it has not returned.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:  # noqa: BLE001 - it is raised again by whoever waits
            outcome.set_exception(error)

    watched.thread(name, run, log=logger).start()
    return outcome.result(limit_s)
