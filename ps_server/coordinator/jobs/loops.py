"""The loops of a job's workers over epochs, and the one after which all of them end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Loops:
    """The progress of workers in their training loops. Not thread-safe.

    Attributes:
        newest: epoch that one of them has begun.
        last: epoch after which they end; None: nobody has stopped the job.
        stopped: who has, and why, for people.
        for_good: it was a person, and no worker by what it has seen of steps.
    """

    newest: int = -1
    last: int | None = None
    stopped: str = ""
    for_good: bool = False

    def begin(self, epoch: int) -> bool:
        """A worker is about to begin this epoch; whether it is to."""
        if self.last is not None and epoch > self.last:
            return False
        self.newest = max(self.newest, epoch)
        return True

    def stop(self, who: str, reason: str, *, for_good: bool) -> bool:
        """All end after the newest epoch that one of them has begun; whether that was not decided before."""
        if self.last is not None:
            self.for_good = self.for_good or for_good
            return False
        self.last, self.for_good = max(self.newest, 0), for_good
        self.stopped = f"{who} has stopped the job after epoch {self.last}: {reason}"
        return True

    def clear(self) -> None:
        """The job is as it was at its start."""
        self.newest, self.last, self.stopped, self.for_good = -1, None, "", False

    def go_back(self, newest: int) -> None:
        """The job is at a snapshot, where this was the newest epoch. A decision of workers is undone."""
        self.newest = newest
        if not self.for_good:
            self.last, self.stopped = None, ""

    def dump(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "last_epoch": self.last,
            "stopped": self.stopped,
            "_newest_epoch": self.newest,
            "stopped_for_good": self.for_good,
        }

    def load(self, facts: Mapping[str, Any]) -> None:
        """Goes on with what was dumped; a release before did not know loops."""
        self.newest, self.last = facts.get("_newest_epoch", -1), facts.get("last_epoch")
        self.stopped, self.for_good = facts.get("stopped", ""), facts.get("stopped_for_good", False)
