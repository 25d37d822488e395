"""Connections to one listener that have not said HELLO yet: few, and not for long.

Each costs a thread and a few hundred bytes. Where there are too many, the oldest goes: who means well says
HELLO at once, so a newcomer is the better guess, and idle strangers shut nobody out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

HELLO_LIMIT_S = 10.0  # for HELLO to come
MAX_STRANGERS = 256


class Greeting:
    """The set of connections that are still greeting; the oldest is severed where there are too many.

    Thread-safe.
    """

    def __init__(self, on_sever: Callable[[], None], most: int | None = None) -> None:
        """Nobody yet, and never more than `most`; `on_sever` is called for each that has to go."""
        self._most = most
        self._on_sever = on_sever
        self._lock = threading.Lock()
        self._severs: dict[Hashable, Callable[[], None]] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._severs)

    def enter(self, stranger: Hashable, sever: Callable[[], None]) -> None:
        """One more; `sever` ends its connection, on any thread, without blocking."""
        gone = None
        with self._lock:
            if len(self._severs) >= (MAX_STRANGERS if self._most is None else self._most):
                gone = self._severs.pop(next(iter(self._severs)))
            self._severs[stranger] = sever
        if gone is not None:
            self._on_sever()
            gone()

    def leave(self, stranger: Hashable) -> None:
        """It is none any more, for whatever reason; it may have left already."""
        with self._lock:
            self._severs.pop(stranger, None)
