"""The cgroups that this process is in: a container's, a batch system's, systemd's; version 1 or 2.

It must not know which setting is looked for, or what it means.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def folders(controller: str, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[tuple[Path, int]]:
    """Each folder in which a limit of this process may stand, and the version of cgroups that it is of.

    A limit of any of them holds. A folder need not be there: a container may see its own cgroup as the root.

    Args:
        controller: "memory", "cpu".
        proc: where `self/cgroup` is; without it, as on a system that is not Linux, there are none.
        cgroups: where cgroups are mounted.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            folder, version = cgroups, 2
        elif controller in controllers.split(","):
            folder, version = cgroups / controller, 1
        else:
            continue
        within = PurePosixPath(path.lstrip("/"))
        for group in (within, *within.parents):
            yield folder / group, version
