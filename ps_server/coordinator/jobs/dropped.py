"""The names of jobs that were dropped, so that those who come back hear why. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ps_server.agreement.refusals import dropped
from ps_wire.errors import JobDropped

MAX_KEPT = 1024  # names; the one that was dropped first goes


@dataclass(slots=True)
class DroppedNames:
    """Names with the last incarnation that was in the job of that name. Not thread-safe."""

    _last: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def note(self, job: str, incarnation: int) -> None:
        """A job is dropped; nobody in it had a larger incarnation."""
        self._last[job] = max(incarnation, self._last.pop(job, 0))
        while len(self._last) > MAX_KEPT:
            self._last.popitem(last=False)

    def last_incarnation(self, job: str) -> int:
        """Of workers of jobs of this name that were dropped: the next one's are larger."""
        return self._last.get(job, 0)

    def dump(self) -> list[list[Any]]:
        """All of them, for JSON, the oldest first."""
        return [[job, incarnation] for job, incarnation in self._last.items()]

    def load(self, facts: Iterable[Any]) -> None:
        """Goes on with what was dumped."""
        self._last = OrderedDict((job, incarnation) for job, incarnation in facts)

    def over(self, job: str, incarnation: int) -> JobDropped | None:
        """Why an incarnation is in no job: its job was dropped; None: it was not, as far as is known."""
        return dropped(job) if 0 < incarnation <= self.last_incarnation(job) else None
