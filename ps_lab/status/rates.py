"""Rates of what only grows, over the last seconds. Pure: time is passed in."""

from __future__ import annotations

from collections import deque

WINDOW_S = 6.0  # workers report every two seconds: over a shorter time rates jump


class Rates:
    """Numbers that only grow, as they were in the last seconds."""

    def __init__(self) -> None:
        """None was seen."""
        self._seen: dict[object, deque[tuple[float, float]]] = {}
        self._asked: set[object] = set()

    def rate(self, key: object, value: float, now_s: float) -> float | None:
        """How fast it grows; None until that is known: workers may not have reported since it began."""
        seen = self._seen.setdefault(key, deque())
        self._asked.add(key)
        if seen and value < seen[-1][1]:
            seen.clear()
        seen.append((now_s, value))
        while len(seen) > 2 and now_s - seen[1][0] >= WINDOW_S:
            seen.popleft()
        (first_s, first), (last_s, last) = seen[0], seen[-1]
        if last == first and last_s - first_s < WINDOW_S:
            return None
        return (last - first) / (last_s - first_s) if last_s > first_s else None

    def forget_others(self) -> None:
        """Forgets what was not asked for since the last call."""
        self._seen = {key: seen for key, seen in self._seen.items() if key in self._asked}
        self._asked.clear()
