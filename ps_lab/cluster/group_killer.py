"""Ends the process groups of a command that was killed, which could not do so itself.

`die_with_parent` ends a child with its parent; what the child has started, such as processes of a DataLoader,
would live on. So one process beside the command holds the end of a pipe: it reads which groups there are, and
when the pipe closes, however the command ended, it kills those that are left. It runs in a session of its
own, so that no signal of a terminal reaches it, and has a handle of each group's leader, which is reaped
after it was told to forget it.
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path

from ps_lab.cluster.process_handle import ProcessHandle

# Without the site's packages, which take longer to look for than all that it imports.
_ROOT = str(Path(__file__).resolve().parents[2])
RUN = f"import sys; sys.path.insert(0, {_ROOT!r}); from ps_lab.cluster.group_killer import main; main()"


class GroupKiller:
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
                    [sys.executable, "-I", "-S", "-c", RUN],
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
    groups: dict[str, ProcessHandle] = {}
    for line in sys.stdin:
        group = line[1:].strip()
        if line[0] == "+":
            with contextlib.suppress(ProcessLookupError):  # ended with us, before it could start anything
                groups[group] = ProcessHandle(int(group))
        elif group in groups:
            groups.pop(group).close()
    for handle in groups.values():
        with contextlib.suppress(PermissionError):
            handle.send_group(signal.SIGKILL)
