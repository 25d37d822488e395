"""SIGTERM of a worker's process: it ends its step, leaves, and exits with 75; a second one ends it at once.

    between steps, or in a wait for others   at once, by SystemExit: what is open is left in order
    inside a step                            when `step()` returns; after the limit at once
    in a group of ranks                      when the step is over in which all have agreed to; likewise
    after `finish()`                         when the script ends, by itself; after the limit with 75

Signals are read by a thread, so that the second one works where the main thread is in a call that does not
come back. Process 1 of a container needs all that: the kernel has no default action for it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from contextlib import suppress
from enum import Enum
from types import FrameType
from typing import Protocol
from weakref import WeakSet

from ps_wire.process import watched
from ps_worker.process.waiting import wait_of

EXIT_CODE = 75  # stopped before the end: run me again
LIMIT_S = 20.0  # Kubernetes kills 30 seconds after its SIGTERM
LAST_S = 8.0  # after the limit, for the worker to leave


class Place(Enum):
    """The place of a script, as far as its worker knows."""

    BETWEEN = "between steps"
    STEP = "in a step"
    GROUP = "in a group"
    DONE = "done"


class Placed(Protocol):
    """A worker."""

    @property
    def place(self) -> Place:
        """Where its script is."""

    @property
    def group_ends(self) -> bool | None:
        """Whether its group has agreed to end; None: it is in none."""


class Stopping:
    """The state of a process that was asked to stop. One for a process.

    Attributes:
        asked: SIGTERM has come.
    """

    def __init__(self, limit_s: float) -> None:
        """Takes SIGTERM from now on; to be made in the main thread."""
        self._limit_s = limit_s
        self._pid = os.getpid()
        self.asked = self._over = self._ended = False
        self._reading, self._writing = socket.socketpair()
        self._writing.setblocking(False)
        watched.endless_thread("ps-stop", self._watch, log=logger).start()
        signal.signal(signal.SIGTERM, self._take)
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._forked)

    def step_ended(self) -> None:
        """A step has ended: if the process is to stop, this is where it does."""
        groups = [ends for ends in (worker.group_ends for worker in workers) if ends is not None]
        self.asked = self.asked or any(groups)
        if self.asked and all(groups):
            self._end()

    def script_ended(self) -> None:
        """The script has: what follows is the end of the process, which nothing interrupts any more."""
        self._ended = True

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        """The handler: in the main thread, between two instructions of the script or of the library."""
        if self.asked and not self._over:
            os._exit(EXIT_CODE)
        self.asked = True
        place = _place()
        if self._over or place is Place.BETWEEN or (place is Place.STEP and _may_go()):
            self._end()

    def _end(self) -> None:
        if not self._ended and threading.current_thread() is threading.main_thread():
            self._ended = True
            raise SystemExit(EXIT_CODE)

    def _watch(self) -> None:
        """Counts SIGTERMs as the kernel delivers them, and looks to the limit."""
        count = self._count(1, None)
        with suppress(OSError):  # nobody reads it any more
            os.write(2, b"ps-worker: SIGTERM: this process ends after its step; at once if it comes again\n")
        if count < 2 and self._count(1, self._limit_s) < 1:
            self._over = True
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGTERM)
            self._count(2, LAST_S)
        os._exit(EXIT_CODE)

    def _count(self, wanted: int, limit_s: float | None) -> int:
        """How many have come, until there are enough or the limit is over."""
        self._reading.settimeout(limit_s)
        count = 0
        try:
            while count < wanted:
                count += self._reading.recv(16).count(signal.SIGTERM)
        except TimeoutError:
            pass
        return count

    def _forked(self) -> None:
        """In a child, which ends as any process does."""
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) == self._take:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


logger = logging.getLogger("ps_worker")

workers: WeakSet[Placed] = WeakSet()
_stopping: Stopping | None = None
_interrupted = False


def install(limit_s: float = LIMIT_S) -> None:
    """From now on SIGTERM ends this process as the module says; to be called in the main thread."""
    global _stopping  # noqa: PLW0603 - signals are the process's
    _stopping = Stopping(limit_s)


def asked() -> bool:
    """Whether this process is to stop."""
    return _stopping is not None and _stopping.asked


def interrupt() -> None:
    """Ctrl-C has ended the script: what follows is the end of the process, for which a person waits."""
    global _interrupted  # noqa: PLW0603 - signals are the process's
    _interrupted = True


def interrupted() -> bool:
    """Whether Ctrl-C has ended the script."""
    return _interrupted


def step_ended() -> None:
    """See `Stopping`; nothing in a process that has its own way with signals."""
    if _stopping is not None:
        _stopping.step_ended()


def script_ended() -> None:
    """See `Stopping`."""
    if _stopping is not None:
        _stopping.script_ended()


def _may_go() -> bool:
    """Whether the main thread only waits for others: what this worker has to say has left."""
    found = wait_of(threading.main_thread().ident)
    return found is not None and not found.inside_step


def _place() -> Place:
    places = {worker.place for worker in workers}
    return next((place for place in (Place.GROUP, Place.STEP, Place.DONE) if place in places), Place.BETWEEN)
