"""The number of members at each clock, and the smallest clock, kept as clocks move.

A push moves one clock by one, so the smallest is known again at once: it is the old one, or the next. Only
when a clock jumps, or a member goes, all clocks are looked at, each once. Pure. It must not know workers.
"""

from __future__ import annotations


class ClockCounts:
    """A multiset of clocks that knows its smallest.

    Attributes:
        smallest: clock of a member; None: there is no member.
    """

    __slots__ = ("_counts", "smallest")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.smallest: int | None = None

    def __copy__(self) -> ClockCounts:
        made = ClockCounts()
        made._counts, made.smallest = self._counts.copy(), self.smallest
        return made

    def add(self, clock: int) -> None:
        """A member comes, at this clock."""
        self._counts[clock] = self._counts.get(clock, 0) + 1
        if self.smallest is None or clock < self.smallest:
            self.smallest = clock

    def remove(self, clock: int) -> None:
        """A member at this clock goes."""
        if self._pop(clock) and clock == self.smallest:
            self.smallest = min(self._counts, default=None)

    def advance(self, clock: int) -> None:
        """A member at this clock goes on to the next."""
        counts, after = self._counts, clock + 1
        counts[after] = counts.get(after, 0) + 1
        if self._pop(clock) and clock == self.smallest:
            self.smallest = after  # no clock lies between

    def _pop(self, clock: int) -> bool:
        """Whether it was the last one at this clock."""
        left = self._counts[clock] - 1
        if left:
            self._counts[clock] = left
            return False
        del self._counts[clock]
        return True
