"""The watch over the leases of all jobs: who is silent for too long is evicted, and who asks it hears so.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from ps_server.coordinator.jobs.member import Member
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.log import logger
from ps_wire.process import watched

LOOK_S = 0.1  # between two looks


class LeaseListener(Protocol):
    """One who asks workers for something, and has to know when none comes any more."""

    def gone(self, job: str, member: Member) -> None:
        """A worker takes no more steps. Called on the event loop, at most a few times for each."""
        ...


class LeaseWatch:
    """One look after the other at the leases of all jobs, as long as there are jobs."""

    def __init__(self, runners: Mapping[str, JobRunner], listeners: Sequence[LeaseListener]) -> None:
        """Looks at `runners` from `look` on; `listeners` hear of each who takes no more steps."""
        self._runners = runners
        self._listeners = listeners
        self._looking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """There are leases: looks at them from now on."""
        if self._looking is None or self._looking.done():
            self._looking = watched.endless_task("looking at leases", self._look, log=logger)

    def stop(self) -> None:
        """Evicts nobody any more."""
        if self._looking is not None:
            self._looking.cancel()

    def gone(self, job: str, member: Member) -> None:
        """A worker takes no more steps: its lease is over, or it has said so."""
        for listener in self._listeners:
            listener.gone(job, member)

    async def _look(self) -> None:
        while self._runners:
            now_s, bug = time.monotonic(), None
            for runner in list(self._runners.values()):
                try:
                    for member in runner.evict_silent(now_s):
                        self.gone(runner.job.name, member)
                except Exception as error:  # noqa: BLE001 - the leases of other jobs end all the same
                    bug = bug or error
            if bug is not None:
                raise bug
            await asyncio.sleep(LOOK_S)
