"""Becomes another command that dies with the process that started it.

Run as a script, `die_with_parent.py PARENT_PID COMMAND...`: it asks the kernel for SIGKILL on the parent's
death and executes the command in its own place, so the process keeps its pid. A separate program, since doing
this between fork and exec (`preexec_fn`) is not safe in a parent with threads. Only Linux has the call;
elsewhere the command simply starts.

The kernel's signal comes when the parent's *thread* that started the process ends, so start from one that
lives as long as the process should.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def tied(command: Sequence[str]) -> list[str]:
    """Gives the command that becomes `command` and ends with this process; its first word is a path."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def die_with(parent: int) -> None:
    """From now on this process ends with its parent, which may have ended before the kernel knew."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Ties this process to its parent and becomes the command."""
    parent, *command = sys.argv[1:]
    die_with(int(parent))
    os.execv(command[0], command)  # noqa: S606  # the list is the caller's


if __name__ == "__main__":
    main()
