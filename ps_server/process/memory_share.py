"""The default memory limit of a server's tables: a share of the memory that this process can have.

That is the machine's, or less where a cgroup (of a container, of a batch system) has a limit: version 1 or 2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

SHARE = 0.8  # beside tables there are torch, frames under way, a second copy while a snapshot lasts
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


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
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            folder, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        within = PurePosixPath(path.lstrip("/"))
        for group in (within, *within.parents):  # a container may see its own as the root
            try:
                text = (folder / group / name).read_text().strip()
            except OSError:
                continue
            if text.isdecimal():  # else "max"
                yield int(text)
