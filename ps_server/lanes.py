"""Work on threads: of one job in the order in which it was given, one after the other; jobs side by side.

So what takes long, such as allocating a table, holds up its own job only. It must not know what is done.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ps_wire.errors import ServerNotReady

MAX_THREADS = 32  # jobs that work side by side; one more waits until another has nothing to do
_Result = TypeVar("_Result")
_Work: TypeAlias = "tuple[Future[Any], Callable[[], Any]]"


class Lanes:
    """Lanes of work: one for each job, with one thing under way in each. Thread-safe.

    `_lock` guards which jobs have work, what waits behind it, and whether it is closed; nothing else is taken
    under it.
    """

    def __init__(self, pool: Executor | None = None) -> None:
        """Takes the threads; default: its own."""
        self._pool = pool or ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="ps-orders")
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Work]] = {}
        self._closed = False

    def submit(self, job: str, work: Callable[[], _Result]) -> Future[_Result]:
        """Has it done after all that was given for this job before. What was given is done: no cancelling.

        Raises:
            ServerNotReady: it is closed. Nothing is kept that nobody would do, and nobody waits for it.
        """
        future: Future[_Result] = Future()
        future.set_running_or_notify_cancel()
        self._put(job, future, work)
        return future

    async def run(self, job: str, work: Callable[..., _Result], *arguments: object) -> _Result:
        """As `submit`, for an event loop: in the context of who asks, and not begun when that one has gone.

        What waits is not bounded here: each stream or call of a job has one thing, and its message, in it.

        Raises:
            ServerNotReady: see `submit`.
        """
        future: Future[_Result] = Future()
        self._put(job, future, partial(copy_context().run, work, *arguments))
        return await asyncio.wrap_future(future)

    def _put(self, job: str, future: Future[_Result], work: Callable[[], _Result]) -> None:
        with self._lock:
            if self._closed:
                raise ServerNotReady("the server stops, and takes no more orders")
            behind = self._waiting.get(job)
            if behind is not None:
                behind.append((future, work))
                return
            self._waiting[job] = deque([(future, work)])
        self._pool.submit(self._run, job)

    def pending(self) -> list[Future[None]]:
        """One for each job that has work: it is over when all that was given until now is."""
        with self._lock:
            jobs = list(self._waiting)
        return [self.submit(job, lambda: None) for job in jobs]

    def close(self) -> None:
        """Takes no more; what was given comes to its end, and nobody waits for it."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False)

    def _run(self, job: str) -> None:
        while True:
            with self._lock:
                if not self._waiting[job]:
                    del self._waiting[job]
                    return
                future, work = self._waiting[job].popleft()
            if not (future.running() or future.set_running_or_notify_cancel()):
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                future.set_exception(error)
