"""Cores that all processes of a host share: everybody who computes gets the same part, one core at most.

The work of a task is in seconds of a core. With n tasks and C cores each goes at min(1, C / n). A clock of
work runs at that rate, so a task is over when the clock has gone on by its work, whoever comes and goes
meanwhile: processor sharing (Kleinrock, "Time-shared systems: a theoretical treatment", 1967).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable


class SharedCores:
    """The cores of one host. Time is the caller's."""

    def __init__(self, count: float) -> None:
        """Of so many cores, not all of them whole: other programs may take a part."""
        self._count = count
        self._clock_s = 0.0  # of work
        self._now_s = 0.0
        self._tasks: list[tuple[float, int, Callable[[], None] | None]] = []
        self._numbers = itertools.count()

    @property
    def slowness(self) -> float:
        """How many times as long as alone one more task takes now."""
        return max(1.0, (len(self._tasks) + 1) / self._count)

    def begin(self, now_s: float, work_s: float, over: Callable[[], None] | None) -> None:
        """A task begins; `over` is called by `advance` when it ends."""
        self._go_on(now_s)
        heapq.heappush(self._tasks, (self._clock_s + work_s, next(self._numbers), over))

    def next_s(self) -> float:
        """When the next task ends, if none comes meanwhile; infinite: there is none."""
        if not self._tasks:
            return math.inf
        left_s = max(self._tasks[0][0] - self._clock_s, 0.0)
        return self._now_s + left_s / self._rate()

    def advance(self, now_s: float) -> None:
        """Ends the first task, whose time has come."""
        self._go_on(now_s)
        ends_s, _, over = heapq.heappop(self._tasks)
        self._clock_s = max(self._clock_s, ends_s)
        if over is not None:
            over()

    def _rate(self) -> float:
        return min(1.0, self._count / len(self._tasks))

    def _go_on(self, now_s: float) -> None:
        if self._tasks:
            self._clock_s += (now_s - self._now_s) * self._rate()
        self._now_s = now_s
