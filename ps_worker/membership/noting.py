"""Notes of a worker's position with the coordinator, for whoever goes on there when it is gone.

A note is put when an epoch begins, and then at the beginning of a step when the last one is `EVERY_S` old, or
older where notes are large. So a position that is taken up is some steps old; these steps are replayed.

A note is put as the incarnation that made it: one that comes late, when the worker has joined again, perhaps
in a job that went back, is refused.

It must not know what a note holds. Used by the thread that trains; the one that puts a note sets `_idle`, and
looks at `_leaves`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from ps_wire.errors import Evicted, PsError
from ps_wire.process import watched

logger = logging.getLogger("ps_worker")

EVERY_S = 2.0
BYTES_PER_S = 1 << 20  # of notes, at most: a step does not feel it
SMALL_BYTES = 1 << 20  # one that is put whenever an epoch begins


class Noting:
    """The times at which notes are due, and the thread that puts them."""

    def __init__(
        self,
        pack: Callable[[], bytes],
        put_now: Callable[[], Callable[[bytes], None]],
        say: Callable[[str], None],
        *,
        now_s: Callable[[], float] = time.monotonic,
        want: Callable[[Callable[[bytes], None]], None] | None = None,
    ) -> None:
        """Has noted nothing.

        Args:
            pack: makes a note.
            put_now: gives what puts a note as this incarnation, and may wait for the coordinator.
            say: says something to the person at the terminal.
            now_s: seconds of a monotonic clock.
            want: in a group, has all ranks make one soon, and calls back with it; None: `pack` makes it.
        """
        self._want = want
        self._pack = pack
        self._put_now = put_now
        self._say = say
        self._now_s = now_s
        self._idle = threading.Event()
        self._idle.set()
        self._due_s = 0.0
        self._nbytes = 0
        self._said = False
        self._leaves = threading.Event()

    def at_step(self) -> None:
        """A step begins: puts a note if one is due; does not wait."""
        if self._now_s() >= self._due_s and self._idle.is_set():
            if self._want is None:
                self._put_beside(self._make(self._pack()))
            else:
                self._due_s = self._now_s() + EVERY_S
                self._want(self._gathered)

    def at_epoch(self, note: bytes | None = None) -> None:
        """An epoch begins: puts a note, and waits until it is there; a large one only when it is due.

        Args:
            note: that was made already.
        """
        self._idle.wait()
        if self._nbytes <= SMALL_BYTES or self._now_s() >= self._due_s:
            self._make(self._pack() if note is None else note)()

    def settle(self, limit_s: float) -> None:
        """The worker leaves: waits so long for a note that is on its way, and says nothing if it fails."""
        self._idle.wait(limit_s)
        self._leaves.set()

    def _gathered(self, note: bytes) -> None:
        """All ranks have made it; does not wait."""
        if self._idle.is_set():
            self._put_beside(self._make(note))

    def _put_beside(self, puts: Callable[[], None]) -> None:
        self._idle.clear()
        try:
            watched.thread("ps-note", puts, log=logger).start()
        except BaseException:  # no thread can be had, or Ctrl-C: nobody puts it
            self._idle.set()
            raise

    def _make(self, note: bytes) -> Callable[[], None]:
        self._nbytes = len(note)
        self._due_s = self._now_s() + max(EVERY_S, self._nbytes / BYTES_PER_S)
        return partial(self._put_one, note, self._put_now())

    def _put_one(self, note: bytes, put: Callable[[bytes], None]) -> None:
        try:
            put(note)
        except Evicted:
            pass  # what follows is noted when it has joined again
        except PsError as error:  # the next one may come through
            if not self._said and not self._leaves.is_set():
                self._said = True
                self._say(f"this worker's position is not noted: {error.message}")
        finally:
            self._idle.set()
