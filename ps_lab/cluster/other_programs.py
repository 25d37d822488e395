"""Processor time of programs that are none of a run: times depend on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol


class Process(Protocol):
    """A process of the run."""

    def used_s(self) -> float | None:
        """Processor time by now, also once it has ended; None: not known."""


def busy_s() -> float | None:
    """Processor time of the whole machine but for this process, by proc(5); None: not known."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
        user, nice, system, _idle, _waiting, interrupts, soft = map(int, first.split()[1:8])
    except (OSError, ValueError):
        return None
    ticks = user + nice + system + interrupts + soft
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


class OtherPrograms:
    """Other programs of this machine, from when it is made."""

    def __init__(self, ours: Iterable[Process], busy_s: Callable[[], float | None] = busy_s) -> None:
        """Begins now.

        Args:
            ours: processes of the run that run already.
            busy_s: processor time of all programs.
        """
        self._busy_s = busy_s
        self._before = [(process, process.used_s() or 0.0) for process in ours]
        self._busy_before_s = busy_s()

    def used_s(self, started: Iterable[Process]) -> float | None:
        """Processor time that they have taken by now; None: not known.

        Args:
            started: processes of the run that were started since.
        """
        busy_s = self._busy_s()
        if busy_s is None or self._busy_before_s is None:
            return None
        ours_s = sum((process.used_s() or 0.0) - before_s for process, before_s in self._before)
        ours_s += sum(process.used_s() or 0.0 for process in started)
        return max(busy_s - self._busy_before_s - ours_s, 0.0)
