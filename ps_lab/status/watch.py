"""Looks at a running job again and again, in a thread of its own: a slow answer holds nobody up."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Self

from ps_lab.status.observer import LOOK_LIMIT_S, ask
from ps_lab.status.progress import Meter
from ps_lab.status.status import Job
from ps_wire.access.access import OPEN, Access
from ps_wire.errors import PsError
from ps_wire.process import watched

logger = logging.getLogger("ps_lab")

LOOK_EVERY_S = 0.5


class Watch:
    """A context manager: it looks while it is open.

    Attributes:
        line: the job's progress as of the last look, for people.
        job: as of the last look that found it.
    """

    def __init__(self, servers: tuple[str, ...], job: str, access: Access = OPEN) -> None:
        self.line = "starting"
        self.job: Job | None = None
        self._servers = servers
        self._job = job
        self._access = access
        self._meter = Meter()
        self._closed = threading.Event()
        self._thread = watched.endless_thread("watch", self._look, log=logger, pause=self._closed.wait)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._closed.wait(LOOK_EVERY_S):
            try:
                job = ask(self._servers, self._access, timeout_s=LOOK_LIMIT_S).job(self._job)
            except PsError as error:
                self.line = error.message
                continue
            if job is not None:
                self.job = job
                self.line = self._describe(job)

    def _describe(self, job: Job) -> str:
        progress = self._meter.read(job, time.monotonic())
        if progress is None:
            return f"{job.state}: {len(job.workers)} of {job.num_workers} workers have joined"
        return f"{job.consistency}  {progress}"
