"""Ranks as child processes of one command, each told by its environment which rank it is.

A rank that ends badly ends nothing here: its group hears of it by itself, and other groups go on. All end
with the command, also where that is killed. It must not know jobs.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from types import FrameType

from ps_wire.errors import ConfigurationRefused
from ps_wire.process import watched
from ps_wire.process.die_with_parent import tied

logger = logging.getLogger("ps_worker")

SIGNALLED = 128  # and the signal's number: how a shell says that one has ended a process


def run(command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> int:
    """Runs a command once for each environment, and waits until all have ended.

    SIGTERM goes on to all that run. Ctrl-C reaches them from the terminal. To be called in the main thread.

    Args:
        command: of each.
        environments: added to this process's.

    Returns:
        The exit code of the one that failed first; 0: none did.

    Raises:
        ConfigurationRefused: the system starts no further process; those that it has started have ended.
    """
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, lambda *_: None)
    for added in environments:
        try:
            child = subprocess.Popen(tied(command), env={**os.environ, **added})  # noqa: S603 - as typed
        except OSError as error:
            _end(children)
            raise ConfigurationRefused(
                f"{len(children)} of {len(environments)} processes of --nproc were started, and were ended "
                f"again: {error.strerror}; start fewer, or raise the limit of processes or memory"
            ) from None
        children.append(child)
    failed = 0
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    for child in children:
        watched.thread("ps-child", partial(_wait, child, ended), log=logger).start()
    for _ in children:
        code = ended.get()
        failed = failed or code
    return failed


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        child.kill()  # it has joined nothing yet
    for child in children:
        child.wait()


def _wait(child: subprocess.Popen[bytes], ended: queue.SimpleQueue[int]) -> None:
    code = child.wait()
    ended.put(SIGNALLED - code if code < 0 else code)
