"""What the script's thread waits for inside the library, and for whom; seen from beside it.

A look at the thread's stack, with each heartbeat, costs the thread nothing, and no wait can forget to say
something. The functions in which it waits for others are listed here.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from types import FrameType

from ps_wire.errors import PsError

AFTER_S = 5.0  # longer than a step that only is slow
AGAIN_S = 10.0  # between two lines of the log about the same wait

WAITS = {  # (file of this package, function) -> for what
    ("waits.py", "wait_acked"): "the servers to take pushes",
    ("waits.py", "wait_free"): "the servers to read gradients",
    ("waits.py", "wait_pulled"): "weights",
    ("waits.py", "all_pulled_within"): "weights",
    ("table.py", "result"): "the servers to answer about a table",
    ("membership.py", "join"): "the coordinator to let this worker in",
    ("membership.py", "wait_made"): "a table to be made",
    ("membership.py", "wait_started"): "a table to start",
    ("membership.py", "finish"): "the others to finish",
    ("coordinator_calls.py", "live_state"): "the state of a worker that trains",
    ("coordinator_calls.py", "wait_state"): "the state of a worker",
    ("coordinator_calls.py", "share"): "the coordinator to deal samples",
    ("server_check.py", "check_servers"): "the servers to answer",
}
INSIDE_STEP = {("waits.py", "wait_free")}  # waits inside a step, before all of it has left


def wait_of(frame: FrameType | None) -> tuple[FrameType, tuple[str, str]] | None:
    """The call on this stack that waits for others, if one does: its frame, and which it is."""
    while frame is not None:
        path = PurePath(frame.f_code.co_filename)
        place = path.name, frame.f_code.co_name
        if path.parent.name == "ps_worker" and place in WAITS:
            return frame, place
        frame = frame.f_back
    return None


class LongWaits:
    """Looks at the thread that makes it. Called by the thread that sends heartbeats.

    Attributes:
        text: what is waited for, for people; empty: nothing, or not for long.
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
        self.text = ""
        self._thread = threading.get_ident()
        self._progress = progress
        self._whom = whom
        self._say = say
        self._clock = clock
        self._seen: tuple[int, tuple[str, str], tuple[int, int]] | None = None
        self._since_s = self._said_s = 0.0
        self._asking: threading.Thread | None = None

    def look(self) -> str:
        """Sees where the thread is; returns `text`."""
        found = wait_of(sys._current_frames().get(self._thread))
        seen = None if found is None else (id(found[0]), found[1], self._progress())
        now_s = self._clock()
        if seen is None or seen != self._seen:
            self._seen, self._since_s, self._said_s, self.text = seen, now_s, now_s - AGAIN_S, ""
        elif now_s - self._since_s >= AFTER_S and now_s - self._said_s >= AGAIN_S:
            self._said_s = now_s
            self._asking = threading.Thread(target=self._report, args=(seen,), name="ps-waits", daemon=True)
            self._asking.start()  # an answer may take longer than a heartbeat may be late
        return self.text

    def _report(self, seen: tuple[int, tuple[str, str], tuple[int, int]]) -> None:
        whom: list[str] = []
        with suppress(PsError):  # then without
            whom = self._whom()
        waited_s = self._clock() - self._since_s
        text = "; ".join([f"waiting for {WAITS[seen[1]]} for {waited_s:.0f} s", *whom])
        if self._seen == seen:
            self.text = text
            self._say(text)
