"""A process that one may signal: what is sent meets this process or nobody, whatever became of its number.

Numbers of processes are used again. On Linux the kernel gives a handle of the process itself, a pidfd. Where
there is none, the number is right for as long as the process is a child that nobody has reaped: whoever reaps
it calls `close` first, on every system. No other file signals by the number of another process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import threading
import time

PROCESS_GROUP = 1 << 2  # PIDFD_SIGNAL_PROCESS_GROUP of linux/pidfd.h, from Linux 6.9
LOOK_S = 0.01  # between two looks at a process, where the kernel has nothing to wait on
# The kernel has no pidfds (before Linux 5.3), or they are forbidden in this container.
NO_PIDFD = frozenset((errno.ENOSYS, errno.EPERM, errno.EACCES))


class ProcessHandle:
    """A process, and the group that it leads. Thread-safe.

    Attributes:
        pid: its number; the handle's owner says it to people, and to nobody else.
    """

    def __init__(self, pid: int) -> None:
        """A handle of the process that has this number now: a child not reaped yet, or whoever was found.

        Raises:
            ProcessLookupError: there is none.
        """
        self.pid = pid
        self._lock = threading.Lock()  # guards both below: nothing is sent once it is closed
        self._pidfd = _pidfd(pid)
        self._closed = False

    def send(self, number: int) -> None:
        """Sends a signal to the process; nothing happens if it has ended."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._closed:
                return
            if self._pidfd is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self._pidfd, number)

    def send_group(self, number: int) -> None:
        """Sends a signal to all processes of its group; nothing happens if there are none.

        Before Linux 6.9, and elsewhere, by the number of the group, which is its leader's: nobody else has it
        while a process of the group lives or the leader is not reaped.
        """
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._closed:
                return
            if self._pidfd is not None:
                try:
                    signal.pidfd_send_signal(self._pidfd, number, None, PROCESS_GROUP)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                else:
                    return
            os.killpg(self.pid, number)

    def wait(self, limit_s: float | None = None) -> bool:
        """Waits until the process has ended, and does not reap it; whether it has, within the limit.

        Not beside `close`, which would take the handle away. Where there is no pidfd it must be a child.
        """
        if self._pidfd is not None:
            ended = select.poll()
            ended.register(self._pidfd, select.POLLIN)
            return bool(ended.poll(None if limit_s is None else 1000 * limit_s))
        until_s = None if limit_s is None else time.monotonic() + limit_s
        while not _has_ended(self.pid):
            if until_s is not None and time.monotonic() >= until_s:
                return False
            time.sleep(LOOK_S)
        return True

    def close(self) -> None:
        """Nothing is sent from now on; called before the process is reaped."""
        with self._lock:
            if not self._closed and self._pidfd is not None:
                os.close(self._pidfd)
            self._closed = True


def _pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in NO_PIDFD:
            return None
        raise


def _has_ended(child: int) -> bool:
    """Whether a child has ended, which stays to be reaped."""
    if sys.platform == "darwin":  # `waitid` came there with Python 3.13
        with contextlib.closing(select.kqueue()) as queue:
            ends = select.kevent(child, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            try:
                return bool(queue.control([ends], 1, 0))
            except ProcessLookupError:  # it had ended before
                return True
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
