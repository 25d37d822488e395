"""A histogram with fixed bounds, which costs the same for each value however many there were. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import add

# Upper bounds, inclusive. The last bucket, above all of them, has none.
UPDATES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 1024)
STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128)
SECONDS = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0)


class Histogram:
    """Counts of values by bucket, and their sum. Not thread-safe: whoever holds it has the lock.

    Attributes:
        bounds: upper ones, inclusive, ascending.
        counts: of values in each bucket; one more than bounds.
        total: sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Has counted nothing."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def count(self, value: float, times: int = 1) -> None:
        """A value came, or came so often."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add(self, other: Histogram) -> None:
        """Counts in what another one of the same bounds has counted."""
        self.counts = list(map(add, self.counts, other.counts))
        self.total += other.total

    @classmethod
    def of(cls, bounds: Sequence[float], counts: Mapping[int, int]) -> Histogram:
        """From how often each value came."""
        made = cls(bounds)
        for value, times in counts.items():
            made.count(value, times)
        return made

    @property
    def number(self) -> int:
        """Of values that were counted."""
        return sum(self.counts)
