"""Lines of the log about peers that are refused: a few a minute for each, the others are counted and said.

Else who sends frames that are refused fills the disk: 33,000 of them wrote 7 MB. Strangers share their lines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ps_server.log import logger

MAX_LINES = 10  # of one peer, in
WINDOW_S = 60.0
MAX_PEERS = 1024  # about whom it is known how much was written; the one of the oldest window goes


@dataclass(slots=True)
class _Window:
    begun_s: float
    lines: int = 0
    left_out: int = 0


class Complaints:
    """A log of refusals with a limit for each peer.

    Thread-safe; `_lock` guards the windows, logging is done outside of it.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """Nothing was said yet."""
        self._now_s = now_s
        self._lock = threading.Lock()
        self._windows: dict[Hashable, _Window] = {}  # by peer, the oldest first

    def say(self, level: int, peer: str, text: str, *facts: object) -> None:
        """Logs `PEER: text` unless the peer has had its lines of this minute.

        Args:
            level: of the line, as `logging` has it.
            peer: as the log names it; who has the same name shares lines.
            text: with places for `facts`, as for `logging`.
            facts: what a peer has said among them: the log's formatter escapes it.
        """
        now_s, over, forgotten = self._now_s(), None, None
        with self._lock:
            window = self._windows.get(peer)
            if window is None or now_s - window.begun_s >= WINDOW_S:
                over = self._windows.pop(peer, None)
                if len(self._windows) >= MAX_PEERS:
                    oldest = next(iter(self._windows))
                    forgotten = oldest, self._windows.pop(oldest)
                window = self._windows[peer] = _Window(now_s)
            says = window.lines < MAX_LINES
            if says:
                window.lines += 1
            else:
                window.left_out += 1
        if forgotten is not None:
            _say_left_out(*forgotten)
        _say_left_out(peer, over)
        if says:
            logger.log(level, f"%s: {text}", peer, *facts)

    def end(self, peer: str) -> None:
        """The peer has gone: what was left out is said, and its minute goes on if it comes again."""
        with self._lock:
            window = self._windows.get(peer)
            left_out = _Window(0.0, left_out=window.left_out) if window is not None else None
            if window is not None:
                window.left_out = 0
        _say_left_out(peer, left_out)


def _say_left_out(peer: Hashable, window: _Window | None) -> None:
    if window is not None and window.left_out:
        logger.warning(
            "%s: %d more refusals, which are not written one by one (at most %d in %g s)",
            peer,
            window.left_out,
            MAX_LINES,
            WINDOW_S,
        )
