"""Cores that all processes of a host share: each runs a task for a time slice, then the next one that waits.

The work of a task is in seconds of a core. A task that begins waits behind those that wait already, and so
does one whose slice is over: round robin (Kleinrock, "Analysis of a time-shared processor", 1964). Slices of
an operating system are about as long as a small step, so of tasks that begin together some end much sooner
than others. With ever shorter slices they would end together, which is processor sharing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

SLICE_S = 0.004  # of Linux at 250 Hz, which looks at a task that runs in each tick
_EPSILON_S = 1e-9  # work that rounding may leave


@dataclass(slots=True, eq=False)
class _Task:
    left_s: float
    over: Callable[[], None] | None
    slice_s: float = 0.0  # left of its slice, while it runs

    @property
    def runs_s(self) -> float:
        """Until it ends or gives way."""
        return min(self.left_s, self.slice_s)


class SharedCores:
    """The cores of one host. Time is the caller's."""

    def __init__(self, count: float, slice_s: float = SLICE_S) -> None:
        """Of so many cores, not all of them whole: other programs take a part, the same of each."""
        self._count = count
        self._cores = math.ceil(count)
        self._speed = count / self._cores
        self._slice_s = slice_s
        self._now_s = 0.0
        self._running: list[_Task] = []
        self._waiting: deque[_Task] = deque()

    @property
    def slowness(self) -> float:
        """How many times as long as alone one more task takes now, if all get the same part."""
        return max(1.0, (len(self._running) + len(self._waiting) + 1) / self._count)

    def begin(self, now_s: float, work_s: float, over: Callable[[], None] | None) -> None:
        """A task begins; `over` is called by `advance` when it ends."""
        self._go_on(now_s)
        self._waiting.append(_Task(work_s, over))
        self._fill()

    def next_s(self) -> float:
        """When the next task ends or gives way, if none comes meanwhile; infinite: there is none."""
        nearest_s = min((task.runs_s for task in self._running), default=math.inf)
        return self._now_s + max(nearest_s, 0.0) / self._speed

    def advance(self, now_s: float) -> None:
        """The task whose time has come ends, or gives way."""
        self._go_on(now_s)
        task = min(self._running, key=lambda it: it.runs_s)
        self._running.remove(task)
        ended = task.left_s <= task.slice_s + _EPSILON_S
        if not ended:
            self._waiting.append(task)
        self._fill()
        if ended and task.over is not None:
            task.over()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._cores:
            task = self._waiting.popleft()
            task.slice_s = self._slice_s
            self._running.append(task)

    def _go_on(self, now_s: float) -> None:
        done_s = (now_s - self._now_s) * self._speed
        for task in self._running:
            task.left_s -= done_s
            task.slice_s -= done_s
        self._now_s = now_s
