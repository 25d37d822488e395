"""Who has connected to one listener and has not said HELLO yet: few, and not for long.

Each costs a thread and a few hundred bytes. Where there are too many, the oldest goes: who means well says
HELLO at once, so a newcomer is the better guess, and idle strangers shut nobody out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

HELLO_LIMIT_S = 10.0  # for HELLO to come
MAX_STRANGERS = 256


class Greeting:
    """See the module's docstring. Thread-safe."""

    def __init__(self, on_cut: Callable[[], None], most: int | None = None) -> None:
        """Nobody yet, and never more than `most`; `on_cut` is called for each that has to go."""
        self._most = most
        self._on_cut = on_cut
        self._lock = threading.Lock()
        self._cuts: dict[Hashable, Callable[[], None]] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._cuts)

    def enter(self, stranger: Hashable, cut: Callable[[], None]) -> None:
        """One more; `cut` ends its connection, on any thread, without blocking."""
        gone = None
        with self._lock:
            if len(self._cuts) >= (MAX_STRANGERS if self._most is None else self._most):
                gone = self._cuts.pop(next(iter(self._cuts)))
            self._cuts[stranger] = cut
        if gone is not None:
            self._on_cut()
            gone()

    def leave(self, stranger: Hashable) -> None:
        """It is none any more, for whatever reason; it may have left already."""
        with self._lock:
            self._cuts.pop(stranger, None)
