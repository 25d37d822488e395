"""The time that a worker takes to leave its job, over all its waits for servers.

Each wait has a limit of its own. Where a person waits, who has pressed Ctrl-C, and servers do not answer, all
of them together have a short one: what they wait for does not come, and whoever comes back finds the worker
gone as if it had been killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

ANSWER_LIMIT_S = 0.1  # after Ctrl-C, for the servers to say that they are there; each that is does at once
LOST_LIMIT_S = 0.05  # where one does not: for others to be told; with the process's own end that is 0.5 s


class Farewell:
    """The waits of one worker that leaves. Used by the thread that leaves."""

    def __init__(self, limit_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins now.

        Args:
            limit_s: for all waits together; None: each has its own limit alone.
            clock: seconds.
        """
        self._clock = clock
        self._until_s = None if limit_s is None else clock() + limit_s

    @property
    def is_short(self) -> bool:
        """Whether what has left may not be on all shards when this worker is gone."""
        return self._until_s is not None

    def left_s(self, limit_s: float) -> float:
        """Seconds that a wait may take which has this limit of its own."""
        if self._until_s is None:
            return limit_s
        return min(limit_s, max(self._until_s - self._clock(), 0.0))


UNHURRIED = Farewell()
