"""Threads and tasks that run beside calls, for whom nobody waits: none of them ends unseen.

    ends by itself     what it raises is a bug: logged with its trace, and whoever depends on it is told
    has no end         what it raises is logged, and it begins again after `AGAIN_S`

What is awaited needs none of this. It must not know what runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

AGAIN_S = 1.0  # a bug that comes again at once fills no log, and a lease of seconds does not notice

Failed: TypeAlias = Callable[[Exception], object]


def thread(
    name: str, run: Callable[[], object], *, log: logging.Logger, failed: Failed | None = None
) -> threading.Thread:
    """A thread that ends by itself, not started.

    Args:
        name: of the thread, for people.
        run: what it does.
        log: gets what `run` raises.
        failed: tells who depends on it; after the log, on the thread.
    """
    return threading.Thread(target=partial(_once, name, run, log, failed), name=name, daemon=True)


def endless_thread(
    name: str,
    run: Callable[[], object],
    *,
    log: logging.Logger,
    pause: Callable[[float], object] = time.sleep,
) -> threading.Thread:
    """A thread without an end, not started: until `run` returns, it is called again and again.

    Args:
        name: of the thread, for people.
        run: what it does; it may begin anew at any time.
        log: gets what `run` raises.
        pause: waits for so many seconds before `run` is called again.
    """

    def watched() -> None:
        while not _once(name, run, log, None, again=True):
            pause(AGAIN_S)

    return threading.Thread(target=watched, name=name, daemon=True)


def timer(name: str, limit_s: float, run: Callable[[], object], *, log: logging.Logger) -> threading.Timer:
    """A timer, not started; what `run` raises is logged."""
    made = threading.Timer(limit_s, partial(_once, name, run, log, None))
    made.name, made.daemon = name, True
    return made


def task(
    name: str, run: Coroutine[Any, Any, None], *, log: logging.Logger, failed: Failed | None = None
) -> asyncio.Task[None]:
    """A task of the running loop that ends by itself; see `thread`. It may be cancelled."""
    made = asyncio.get_running_loop().create_task(run, name=name)
    outcome(name, made, log=log, failed=failed)
    return made


def endless_task(
    name: str,
    run: Callable[[], Coroutine[Any, Any, None]],
    *,
    log: logging.Logger,
    pause: Callable[[float], Coroutine[Any, Any, object]] = asyncio.sleep,
) -> asyncio.Task[None]:
    """A task of the running loop without an end; see `endless_thread`. It may be cancelled."""

    async def watched() -> None:
        while True:
            try:
                return await run()
            except Exception as error:  # noqa: BLE001 - whatever it is, it begins again
                _say(log, name, error, None, again=True)
                await pause(AGAIN_S)

    made = asyncio.get_running_loop().create_task(watched(), name=name)
    outcome(name, made, log=log)  # `pause` may fail, too
    return made


def outcome(
    name: str, future: asyncio.Future[Any], *, log: logging.Logger, failed: Failed | None = None
) -> None:
    """Logs what ends a future that nobody awaits, or only some; see `thread`. It may be cancelled."""

    def ended(it: asyncio.Future[Any]) -> None:
        error = None if it.cancelled() else it.exception()
        if isinstance(error, Exception):
            _say(log, name, error, failed)

    future.add_done_callback(ended)


def _once(
    name: str, run: Callable[[], object], log: logging.Logger, failed: Failed | None, *, again: bool = False
) -> bool:
    """Whether it came to its own end."""
    try:
        run()
    except Exception as error:  # noqa: BLE001 - whatever it is, somebody has to hear of it
        _say(log, name, error, failed, again=again)
        return False
    return True


def _say(
    log: logging.Logger, name: str, error: Exception, failed: Failed | None, *, again: bool = False
) -> None:
    log.error("bug: %s ended%s", name, f"; it begins again in {AGAIN_S:g} s" if again else "", exc_info=error)
    if failed is not None:
        try:
            failed(error)
        except Exception:
            log.exception("bug: nobody could be told that %s has ended", name)
