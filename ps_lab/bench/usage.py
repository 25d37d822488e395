"""Resources that processes have used, as Linux tells it in /proc; elsewhere None."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def cpu_s(pids: Iterable[int]) -> float | None:
    """CPU-seconds of these processes so far, all threads, user and system; to 10 ms each."""
    ticks = 0
    for pid in pids:
        try:
            # The name, in parentheses, may hold blanks; utime and stime are the 12th and 13th after it.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_rss_bytes(pid: int) -> int | None:
    """The most memory that a process has had resident, shared pages included."""
    return _field(Path(f"/proc/{pid}/status"), "VmHWM")


def rss_bytes(pid: int) -> int | None:
    """The memory that a process has resident now, shared pages included."""
    return _field(Path(f"/proc/{pid}/status"), "VmRSS")


def pss_bytes(pids: Iterable[int]) -> int | None:
    """The memory of these processes together; a page that several share counts once."""
    parts = [_field(Path(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in pids]
    return None if None in parts else sum(part or 0 for part in parts)


def borrowed_bytes(pid: int) -> int | None:
    """Memory that a process has resident and that other processes of the project have made and lent to it."""
    own = f"/memfd:ps-{pid} "
    total, counts = 0, False
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        head, _, rest = line.partition(" ")
        if "-" in head:  # addresses: a mapping begins
            counts = "/memfd:ps-" in rest and own not in f"{rest} "
        elif counts and head == "Rss:":
            total += int(rest.split()[0]) << 10
    return total


def open_files(pid: int) -> int | None:
    """The file descriptors that a process has open."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return None


def available_bytes() -> int | None:
    """Bytes that the machine can still hand out without swapping."""
    return _field(Path("/proc/meminfo"), "MemAvailable")


def _field(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), None)
