"""Ranks as child processes of one command, each told by its environment which rank it is.

They are forked by the command, which has imported torch and what a worker needs, and has neither a thread of
Python's nor a connection by then; or each is an interpreter of its own. A rank that ends badly ends nothing
here: its group hears of it by itself, and other groups go on. All end with the command, also where that is
killed. It must not know jobs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from ps_wire.errors import ConfigurationRefused
from ps_wire.process.die_with_parent import die_with
from ps_wire.process.forking import begin_child, preload

CAN_FORK = sys.platform == "linux"  # elsewhere a fork without exec is not safe
SIGNALLED = 128  # and the signal's number: how a shell says that one has ended a process
FORWARDED = (signal.SIGTERM, signal.SIGINT)


def run(
    environments: Sequence[Mapping[str, str]],
    command: Sequence[str] = (),
    *,
    modules: Sequence[str] = (),
    started: Callable[[], object] = lambda: None,
) -> int | None:
    """Starts a process for each environment, and waits until all have ended.

    SIGTERM goes on to all that run. Ctrl-C reaches them from the terminal. To be called in the main thread.

    Args:
        environments: added to this process's.
        command: what each becomes; empty: each goes on as this process would, from here.
        modules: that all import; where each goes on as this process would, they are imported before, once.
        started: called when all are there; what it gives is kept until all have ended.

    Returns:
        The exit code of the one that failed first; 0: none did. None: this is one of them.

    Raises:
        ConfigurationRefused: the system starts no further process; those that it has started have ended.
    """
    threads = 0 if command else preload(modules)
    running: set[int] = set()

    def forward(number: int, _: FrameType | None) -> None:
        for pid in running:
            os.kill(pid, number)

    before = [signal.signal(signal.SIGTERM, forward), signal.signal(signal.SIGINT, lambda *_: None)]
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # what comes now comes when all are there
    sys.stdout.flush()
    sys.stderr.flush()
    me = os.getpid()
    try:
        for added in environments:
            pid = os.fork()
            if pid == 0:
                die_with(me)
                for number, handler in zip(FORWARDED, before, strict=True):
                    signal.signal(number, handler)
                os.environ.update(added)
                if command:
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
                    os.execv(command[0], list(command))  # noqa: S606 - as typed
                begin_child(threads)
                return None
            running.add(pid)
    except OSError as error:
        _end(running)
        raise ConfigurationRefused(
            f"{len(running)} of {len(environments)} processes of --nproc were started, and were ended "
            f"again: {error.strerror}; start fewer, or raise the limit of processes or memory"
        ) from None
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    kept = started()
    failed = _wait(running)
    del kept
    return failed


def _end(running: set[int]) -> None:
    for pid in running:
        os.kill(pid, signal.SIGKILL)  # it has joined nothing yet
    for pid in running:
        os.waitpid(pid, 0)


def _wait(running: set[int]) -> int:
    """Waits for all; each goes out before its number can be another process's, which a signal would meet.

    Process 1 of a container gets what ranks leave behind, too, whose codes are none of a rank.
    """
    failed = 0
    while running:
        if hasattr(os, "waitid"):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            pid, is_rank = ended.si_pid, ended.si_pid in running
            running.discard(pid)
            _, status = os.waitpid(pid, 0)
        else:
            pid, status = os.wait()
            is_rank = pid in running
            running.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        if is_rank and not failed:
            failed = SIGNALLED - code if code < 0 else code
    return failed
