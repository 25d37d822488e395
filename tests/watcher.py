"""A process beside one of pytest: where that is at one thing for too long, it ends it, with all its stacks.

It needs nothing of the process that it watches, not its GIL. On its stdin come lines: how many seconds what
comes now may take (0: as long as it likes), and what it is. A process that is stuck gets SIGABRT, at which
faulthandler writes where its threads stand, and SIGKILL if that does not end it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from ps_lab.cluster.process_handle import ProcessHandle

END = "the end of its process"
STACKS_LIMIT_S = 20.0  # between SIGABRT and SIGKILL


class Watcher:
    """Reads what the process is at, until it has ended or was ended."""

    def __init__(self, pid: int, process: ProcessHandle | None) -> None:
        """`process` is None where that of the number `pid` had ended before this one had begun."""
        self._pid, self._process = pid, process
        self._what, self._limit_s, self._since_s = "", 0.0, time.monotonic()
        self._rest = b""

    def run(self) -> None:
        while self._wait():
            data = os.read(0, 1 << 16)
            if not data:
                if self._what != END:
                    self._say(f"ended without a word, at {self._what}")
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            if lines:
                limit, _, what = lines[-1].decode(errors="replace").partition(" ")
                self._what, self._limit_s, self._since_s = what, float(limit), time.monotonic()
        if self._process is None or self._process.wait(0.0):
            return  # somebody else holds our pipe
        self._say(f"is stuck for more than {self._limit_s:g} s at {self._what}; it is ended by SIGABRT")
        self._process.send(signal.SIGABRT)
        if not self._process.wait(STACKS_LIMIT_S):
            self._process.send(signal.SIGKILL)

    def _wait(self) -> bool:
        """Whether there is something to read in time."""
        if not self._limit_s:
            select.select([0], [], [])
            return True
        left_s = self._since_s + self._limit_s - time.monotonic()
        return bool(select.select([0], [], [], max(left_s, 0.0))[0])

    def _say(self, text: str) -> None:
        print(f"\nprocess {self._pid} of the tests {text}", file=sys.stderr, flush=True)


def main(pid: int) -> None:
    """Watches the process that started this one."""
    process = None
    with contextlib.suppress(ProcessLookupError):
        process = ProcessHandle(pid)
    Watcher(pid, process if os.getppid() == pid else None).run()
