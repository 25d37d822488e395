"""Threads that close steps: sums and optimizers of several partitions run beside each other.

torch lets go of the interpreter in its kernels, so as many run at once as the process has cores, by its
affinity and its cgroup. It must not know what a job does.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TypeAlias

from ps_server.log import logger
from ps_server.shard.transport.outbox import corked
from ps_wire.process import watched
from ps_wire.process.cores import available_cores

Job: TypeAlias = Callable[[], None]

BATCH = 8  # jobs whose replies leave together, while others wait


class ClosingPool:
    """A pool of threads that close steps. Jobs begin in the order in which they were given."""

    def __init__(self) -> None:
        """Starts the threads; they end with `close`, or with the process."""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [
            watched.endless_thread("ps-apply", self._run, log=logger) for _ in range(available_cores())
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Has a job done. It handles its errors itself."""
        self._jobs.put(job)

    def close(self) -> None:
        """Ends the threads when all jobs that were given are done."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while self._batch():
            pass

    def _batch(self) -> bool:
        """Does some jobs; False: there will be none any more."""
        with corked():
            for index in range(BATCH):
                try:
                    job = self._jobs.get(block=index == 0)
                except queue.Empty:
                    break
                if job is None:
                    return False
                try:
                    job()
                except Exception:  # noqa: BLE001 - the threads serve all jobs; this one's workers are told
                    logger.exception("bug while closing a step")
        return True
