"""Points at which a server that starts stands still, until its test lets it go on or kills it.

Installed in the process by `TESTS_INSTALL`; the environment names a point and a FIFO. The process says that
it is there, on a line of its output, and goes on once somebody has opened the FIFO to write, and closed it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ps_server.coordinator.snapshots.saved_jobs import SavedJobs
from ps_server.shard import hand_off
from ps_server.shard.transport.socket_server import SocketServer

POINT, FIFO = "START_POINT", "START_FIFO"
FOUND = "what was handed off is read"
BOUND = "all that can fail is done"
USED = "the hand-off is used up"
NO_THREAD = "there can be no more threads"
LISTING = "jobs that have snapshots are looked for"  # on shard 0, which serves by then


def environment(point: str, fifo: Path) -> dict[str, str]:
    """For a process that is to stand at this point."""
    return {"TESTS_INSTALL": "tests.faults.start_points", POINT: point, FIFO: str(fifo)}


def install() -> None:
    """Puts itself around what a start does with the hand-off."""
    find: Callable[..., Any] = hand_off.find
    use_up: Callable[..., Any] = hand_off.FoundHandOff.use_up
    jobs = SavedJobs.jobs

    def found(*arguments: Any) -> Any:
        it = find(*arguments)
        _stand(FOUND)
        return it

    def used_up(it: hand_off.FoundHandOff) -> None:
        _stand(BOUND)
        use_up(it)
        _stand(USED)

    def listed(it: SavedJobs) -> list[str]:
        _stand(LISTING)
        return jobs(it)

    def no_thread(_: SocketServer) -> None:
        raise RuntimeError("can't start new thread")

    if os.environ[POINT] == NO_THREAD:
        SocketServer.begin = no_thread  # type: ignore[method-assign]
    hand_off.find = found
    hand_off.FoundHandOff.use_up = used_up  # type: ignore[method-assign]
    SavedJobs.jobs = listed  # type: ignore[method-assign]


def _stand(point: str) -> None:
    if os.environ[POINT] == point:
        print(f"stands: {point}", flush=True)
        Path(os.environ[FIFO]).read_bytes()
