"""The end of a group at one common step: where one rank has got SIGTERM, all end when the same step is over.

It must not know signals.
"""

from __future__ import annotations

from collections.abc import Callable


class Ending:
    """Whether a group is to end, as one rank knows it.

    Attributes:
        decided: on the leader: a rank has asked for it.
        agreed: all ranks know it: this process may end when its step is over.
    """

    def __init__(self, asked: Callable[[], bool]) -> None:
        """Nobody has asked; `asked` says whether this process was told to end."""
        self.asked = asked
        self.decided = False
        self.agreed = False

    def heard(self, ends: bool) -> None:
        """On the leader: what all ranks say in a step."""
        self.decided = self.decided or ends

    def agree(self) -> None:
        """All ranks hear of it at this very step."""
        self.agreed = True
