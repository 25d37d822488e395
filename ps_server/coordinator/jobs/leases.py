"""Leases of one job's members: who was silent for too long. Pure; times are seconds of a monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass, field

STALL_S = 1.0  # between two looks; whoever looks more seldom was held up itself


@dataclass(slots=True)
class Leases:
    """The time that each member of one job has left until it counts as dead. Not thread-safe.

    A coordinator that did not run has not heard anybody: what it missed is given back to every lease.
    """

    _until_s: dict[tuple[int, int], float] = field(default_factory=dict)
    _terms_s: dict[tuple[int, int], float] = field(default_factory=dict)
    _looked_s: float | None = None

    def grant(self, worker: int, incarnation: int, term_s: float, now_s: float) -> None:
        """A member is here; a term of 0 never ends."""
        if term_s > 0:
            self._terms_s[worker, incarnation] = term_s
            self._until_s[worker, incarnation] = now_s + term_s

    def renew(self, worker: int, incarnation: int, now_s: float) -> None:
        """A member was heard."""
        key = worker, incarnation
        if key in self._terms_s:
            self._until_s[key] = now_s + self._terms_s[key]

    def end(self, worker: int, incarnation: int) -> None:
        """A member has gone."""
        self._terms_s.pop((worker, incarnation), None)
        self._until_s.pop((worker, incarnation), None)

    def left_s(self, worker: int, incarnation: int, now_s: float) -> float | None:
        """Seconds that are left of a lease; None: it never ends, or there is none."""
        until_s = self._until_s.get((worker, incarnation))
        return None if until_s is None else until_s - now_s

    def expired(self, now_s: float) -> list[tuple[int, int]]:
        """Whose leases are over, as (worker, incarnation); each comes out once. To be called often."""
        held_up_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if held_up_s > STALL_S:
            self._until_s = {key: until_s + held_up_s for key, until_s in self._until_s.items()}
        over = sorted(key for key, until_s in self._until_s.items() if until_s <= now_s)
        for key in over:
            self.end(*key)
        return over
