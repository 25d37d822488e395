"""Lines of the log that peers cause, refusals above all: a few a minute for each, the others are counted.

Else who sends frames that are refused fills the disk: 33,000 of them wrote 7 MB. Strangers share their lines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from ps_server.log import logger

MAX_LINES = 10  # of one peer, in
WINDOW_S = 60.0
MAX_PEERS = 1024  # about whom it is known how much was written; the one of the oldest window goes


@dataclass(slots=True)
class _Window:
    peer: str
    begun_s: float
    lines: int = 0
    left_out: int = 0
    counted: bool = False  # that some were left out has been said


class Complaints:
    """A log of what peers cause, with a limit for each.

    Thread-safe; `_lock` guards the windows, logging is done outside of it.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """Nothing was said yet."""
        self._now_s = now_s
        self._lock = threading.Lock()
        self._windows: dict[Hashable, _Window] = {}  # the oldest first

    def say(self, level: int, peer: str, text: str, *facts: object, of: Hashable = None) -> None:
        """Logs `PEER: text` unless the peer has had its lines of this minute.

        Args:
            level: of the line, as `logging` has it.
            peer: as the log names it.
            text: with places for `facts`, as for `logging`.
            facts: what a peer has said among them: the log's formatter escapes it.
            of: what shares its lines with all that is of the same; None: all of this peer.
        """
        now_s, over, forgotten = self._now_s(), None, None
        key = peer if of is None else of
        with self._lock:
            window = self._windows.get(key)
            if window is None or now_s - window.begun_s >= WINDOW_S:
                over = self._windows.pop(key, None)
                if len(self._windows) >= MAX_PEERS:
                    forgotten = self._windows.pop(next(iter(self._windows)))
                window = self._windows[key] = _Window(peer, now_s)
            says = window.lines < MAX_LINES
            if says:
                window.lines += 1
            else:
                window.left_out += 1
        _say_left_out(forgotten)
        _say_left_out(over)
        if says:
            logger.log(level, f"%s: {text}", peer, *facts)

    def end(self, peer: str) -> None:
        """The peer has gone: what was left out is said, once a minute, which goes on if it comes again."""
        with self._lock:
            window = self._windows.get(peer)
            said = None
            if window is not None and window.left_out and not window.counted:
                said = replace(window)
                window.left_out, window.counted = 0, True
        _say_left_out(said)


def _say_left_out(window: _Window | None) -> None:
    if window is not None and window.left_out:
        logger.warning(
            "%s: %d more of these lines, which are not written one by one (at most %d in %g s)",
            window.peer,
            window.left_out,
            MAX_LINES,
            WINDOW_S,
        )
