"""Waits of the script's thread inside the library, and for whom; seen from beside it.

Functions in which it waits for others are marked, and who sends heartbeats looks at the mark. (Not at the
stack: `sys._current_frames` may deadlock with the garbage collector, in Python 3.11 for one.)
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from types import FrameType
from typing import ParamSpec, TypeVar

from ps_wire.errors import PsError
from ps_wire.process import watched

logger = logging.getLogger("ps_worker")

AFTER_S = 5.0  # longer than a step that only is slow
AGAIN_S = 10.0  # between two lines of the log about the same wait

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """One call that waits for others.

    Attributes:
        what: is waited for, for people.
        inside_step: before all of a step has left.
        frame: id of the call's; the frame itself would keep alive all that is on the stack.
    """

    what: str
    inside_step: bool
    frame: int


_now: dict[int, Wait] = {}  # by thread


def waits(
    what: str, *, inside_step: bool = False
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Marks a function in which the script's thread waits for others; of nested ones the outermost counts."""

    def mark(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            thread = threading.get_ident()
            if thread in _now and _goes_on(_now[thread]):
                return function(*args, **kwargs)
            try:
                _now[thread] = Wait(what, inside_step, id(sys._getframe()))
                return function(*args, **kwargs)
            finally:
                _now.pop(thread, None)

        return call

    return mark


def _goes_on(wait: Wait) -> bool:
    """Whether this thread is still in that call: Ctrl-C at its very end leaves a mark behind."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and id(frame) != wait.frame:
        frame = frame.f_back
    return frame is not None


def wait_of(thread: int | None) -> Wait | None:
    """The wait that a thread is in now, by its ident."""
    return None if thread is None else _now.get(thread)


class LongWaits:
    """Looks at the thread that makes it. Called by the thread that sends heartbeats.

    `_lock` guards all but what it is made of.
    """

    def __init__(
        self,
        progress: Callable[[], tuple[int, int]],
        whom: Callable[[], list[str]],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """For the thread that calls this.

        Args:
            progress: steps and samples so far: while they grow, nothing hangs.
            whom: who holds things up; may take a while, and raise `PsError`.
            say: to the person at the terminal.
            clock: seconds.
        """
        self._lock = threading.Lock()
        self._text = ""
        self._thread = threading.get_ident()
        self._progress = progress
        self._whom = whom
        self._say = say
        self._clock = clock
        self._seen: tuple[Wait, tuple[int, int]] | None = None
        self._since_s = self._said_s = 0.0
        self._asking: threading.Thread | None = None

    @property
    def text(self) -> str:
        """The wait, for people; empty: there is none, or it is not long."""
        with self._lock:
            return self._text

    def look(self) -> str:
        """Sees where the thread is; returns `text`."""
        found = wait_of(self._thread)
        seen = None if found is None else (found, self._progress())
        if self._is_long(seen):
            self._asking = watched.thread("ps-waits", partial(self._report, seen), log=logger)
            self._asking.start()  # an answer may take longer than a heartbeat may be late
        return self.text

    def _is_long(self, seen: tuple[Wait, tuple[int, int]] | None) -> bool:
        """Whether to ask for whom."""
        now_s = self._clock()
        with self._lock:
            if seen is None or seen != self._seen:
                self._seen, self._since_s, self._said_s, self._text = seen, now_s, now_s - AGAIN_S, ""
            elif now_s - self._since_s >= AFTER_S and now_s - self._said_s >= AGAIN_S:
                self._said_s = now_s
                return True
        return False

    def _report(self, seen: tuple[Wait, tuple[int, int]] | None) -> None:
        assert seen is not None
        whom: list[str] = []
        with suppress(PsError):  # then without
            whom = self._whom()
        with self._lock:
            if self._seen != seen:
                return  # it is over
            waited_s = self._clock() - self._since_s
            self._text = text = "; ".join([f"waiting for {seen[0].what} for {waited_s:.0f} s", *whom])
        self._say(text)
