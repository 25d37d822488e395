"""Ends the process groups of a command that was killed, which could not do so itself.

`tether` ends a child with its parent; what the child has started, such as processes of a DataLoader, would
live on. So one process beside the command holds the end of a pipe: it reads which groups there are, and when
the pipe closes, however the command ended, it kills those that are left. It is run as a script, in a session
of its own, so that no signal of a terminal reaches it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading


class Keeper:
    """The command's end of the pipe. Thread-safe; its process is started with the first group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self, group: int) -> None:
        """From now on this group ends with us."""
        self._tell(f"+{group}")

    def release(self, group: int) -> None:
        """This group has ended: its number may be another's soon."""
        self._tell(f"-{group}")

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                atexit.register(self._end, self._process)
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        """At our own end it goes first, so that nobody finds it."""
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def main() -> None:
    """Reads groups until the pipe closes, then kills them."""
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
