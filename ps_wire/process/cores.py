"""The cores that this process can use: those that it may run on, or fewer where a cgroup limits its time.

A container with a limit of 2 processors on a machine of 96 may run on each of the 96, and gets the time of 2.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from ps_wire.process.cgroups import CGROUPS, PROC, folders


def available_cores(may_use: int | None = None, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """How many threads can run at once; a part of a core counts as one.

    Args:
        may_use: cores that the process may run on; default: as the system says.
        proc: where `self/cgroup` is.
        cgroups: where cgroups are mounted.
    """
    if may_use is None:
        may_use = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min([float(may_use), *_limits(proc, cgroups)])))


def _limits(proc: Path, cgroups: Path) -> Iterator[float]:
    for folder, version in folders("cpu", proc=proc, cgroups=cgroups):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            words = [word for name in names for word in (folder / name).read_text().split()]
        except OSError:
            continue
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
            yield int(words[0]) / int(words[1])  # else "max", or -1: no limit
