"""The default memory limit of a server's tables: a share of the memory that this process can have.

That is the machine's, or less where a cgroup (of a container, of a batch system) has a limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ps_wire.process.cgroups import CGROUPS, PROC, folders

SHARE = 0.8  # beside tables there are torch, frames under way, a second copy while a snapshot lasts
NAMES = {2: "memory.max", 1: "memory.limit_in_bytes"}  # by the version of cgroups


def default_limit_bytes(
    machine_bytes: int | None = None, *, proc: Path = PROC, cgroups: Path = CGROUPS
) -> int:
    """The share of this process's memory, in bytes.

    Args:
        machine_bytes: of the machine; default: as the system says.
        proc: where `self/cgroup` is.
        cgroups: where cgroups are mounted.
    """
    if machine_bytes is None:
        machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(SHARE * min([machine_bytes, *_limits(proc, cgroups)]))


def _limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """Of the cgroup that this process is in, and of all above it: the smallest one counts."""
    for folder, version in folders("memory", proc=proc, cgroups=cgroups):
        try:
            text = (folder / NAMES[version]).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():  # else "max"
            yield int(text)
