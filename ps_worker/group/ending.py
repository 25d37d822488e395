"""The end of a group at one common step: where one rank has got SIGTERM, all end when the same step is over.

It must not know signals.
"""

from __future__ import annotations

from collections.abc import Callable


class Ending:
    """Whether a group is to end, as one rank knows it.

    Attributes:
        asked: whether this process was told to end; said with each step of each table.
        agreed: all ranks know it: this process may end when its step is over.
    """

    def __init__(self, asked: Callable[[], bool]) -> None:
        """Nobody has asked."""
        self.asked = asked
        self.agreed = False

    def agree(self) -> None:
        """All ranks have heard of it with this very step."""
        self.agreed = True
