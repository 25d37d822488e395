"""An allowance of requests, by name: so many in so many seconds. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Allowance:
    """The requests that each name has made lately, against a limit. Not thread-safe.

    Attributes:
        times: that are allowed within `window_s`.
        window_s: seconds, of a monotonic clock.
    """

    times: int
    window_s: float
    _taken: dict[str, deque[float]] = field(default_factory=dict)

    def wait_s(self, name: str, now_s: float) -> float:
        """Seconds until it may be asked for under this name; 0: it may now."""
        taken = self._recent(name, now_s)
        return taken[0] + self.window_s - now_s if len(taken) >= self.times else 0.0

    def take(self, name: str, now_s: float) -> None:
        """It was done once more."""
        for other in list(self._taken):
            self._recent(other, now_s)
        self._taken.setdefault(name, deque()).append(now_s)

    def _recent(self, name: str, now_s: float) -> deque[float]:
        taken = self._taken.get(name, deque())
        while taken and taken[0] + self.window_s <= now_s:
            taken.popleft()
        if not taken:
            self._taken.pop(name, None)
        return taken
