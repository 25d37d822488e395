"""The close of one cell's complete step: announced, taken by some thread, held until its scale is known.

    none       the open step is not complete, or members have changed: the machine gives it again
    announced  it is complete; somebody is to close it
    held       it was looked at, and waits for the scale of its norm

Not thread-safe: its cell has a lock. It must not know tensors, or what a close does.
"""

from __future__ import annotations

from collections.abc import Callable


class PendingClose:
    """The complete step of a cell that is not closed yet, at most one."""

    __slots__ = ("_announced", "_held", "_later")

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        """No step is complete; `later` has one closed, now or on another thread."""
        self._later = later
        self._announced: int | None = None
        self._held: int | None = None

    @property
    def announced(self) -> bool:
        """Whether a step is complete that nobody has looked at."""
        return self._announced is not None

    def precedes(self, step: int) -> bool:
        """Whether one before this step is."""
        return self._announced is not None and step > self._announced

    def announce(self, step: int, close: Callable[[], None]) -> None:
        """Has a complete step closed, once: the machine gives it again when members change."""
        if step not in (self._held, self._announced):
            self._announced = step
            self._later(close)

    def pop(self) -> int | None:
        """Somebody closes the announced step now; None: another thread has done it."""
        step, self._announced = self._announced, None
        return step

    def hold(self, step: int) -> None:
        """The step that was taken waits for its scale."""
        self._held = step

    def decide(self, step: int) -> bool:
        """The scale of a step is known; False: that one does not wait for it."""
        if self._held != step:
            return False
        self._held = None
        return True

    def look_again(self) -> None:
        """One who goes may have had a part in the norm of the held step: it is announced once more."""
        self._held = None
