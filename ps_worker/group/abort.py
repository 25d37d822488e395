"""The end of a group: a flag that is set once, with the reason, and frees whoever waits for another rank.

`changed` guards `error` and who is told; whoever waits for something else besides waits on it, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ps_wire.errors import GroupBroken


class Abort:
    """The flag of one rank.

    Attributes:
        changed: notified when the flag is set, and by whoever else shares it.
        error: why the group has ended; None: it has not.
    """

    def __init__(self) -> None:
        """Is not set."""
        self.changed = threading.Condition()
        self.error: GroupBroken | None = None
        self._told: list[Callable[[GroupBroken], None]] = []

    def set(self, reason: str) -> GroupBroken:
        """The group has ended; the first reason stays, and is given back."""
        with self.changed:
            if self.error is None:
                self.error = GroupBroken(f"{reason}: all ranks of this group end; start it again")
            self.changed.notify_all()
            error, told = self.error, self._told.copy()
            self._told.clear()
        for tell in told:
            tell(error)
        return error

    def when_set(self, tell: Callable[[GroupBroken], None]) -> None:
        """Calls back, once, when the flag is set, on whichever thread sets it; at once where it is."""
        with self.changed:
            error = self.error
            if error is None:
                self._told.append(tell)
        if error is not None:
            tell(error)

    def check(self) -> None:
        """Raises GroupBroken where the group has ended."""
        if self.error is not None:
            raise self.error
