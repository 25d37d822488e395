"""An epoch of a loader that was dealt to workers, and its shares as far as known. Values, for `EpochBook`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class DealtEpoch:
    """An epoch of a loader that was dealt to workers, with their shares."""

    owners: dict[int, int]  # worker -> incarnation, or one of the words of `epoch_book` for it
    samples: int = 0
    used: int = 0  # in pieces that are closed
    handed_on: int = 0
    starts: dict[int, int] = field(default_factory=dict)  # worker -> batches of its share used before
    begun: set[int] = field(default_factory=set)  # workers
    left: list[tuple[int, int]] = field(default_factory=list)  # place, first batch

    def place(self, worker: int) -> int:
        """Of a worker's share, in the order of numbers."""
        return sorted(self.owners).index(worker)

    def begin(self, worker: int) -> None:
        """This worker hands out its share from now on."""
        self.begun.add(worker)

    def own(self, worker: int, incarnation: int) -> None:
        """The share of a worker that was awaited is this incarnation's."""
        self.owners[worker] = incarnation

    def leave_over(self, place: int, first: int) -> None:
        """A share is nobody's from this batch on."""
        self.left.append((place, first))

    def pop_left(self, own: int | None) -> tuple[int, int]:
        """Removes and returns what is left over: of this place if there is, else what was left first."""
        places = [place for place, _ in self.left]
        return self.left.pop(places.index(own) if own in places else 0)

    def forget_samples(self) -> None:
        """One who begins has used a part of its share before: how many samples are used now is not known."""
        self.samples = 0

    def count(self, samples: int, *, handed_on: int) -> None:
        """So many samples more are used in pieces that are closed, of which some are `handed_on`."""
        self.used += samples
        self.handed_on += handed_on

    def give_up(self, workers: Collection[int], owner: int, *, left_over: bool) -> None:
        """Those of these who have not begun their shares never will; they are `owner`'s from now on."""
        for place, worker in enumerate(sorted(self.owners)):
            if worker in workers and worker not in self.begun:
                self.owners[worker] = owner
                self.begun.add(worker)
                if left_over:
                    self.leave_over(place, self.starts.get(worker, 0))

    def dump(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "owners": list(self.owners.items()),
            "samples": self.samples,
            "used": self.used,
            "handed_on": self.handed_on,
            "starts": list(self.starts.items()),
            "begun": sorted(self.begun),
            "left": list(self.left),
        }

    @classmethod
    def load(cls, facts: Mapping[str, Any]) -> DealtEpoch:
        """Makes the epoch that was dumped."""
        return cls(
            owners=dict(facts["owners"]),
            samples=facts["samples"],
            used=facts["used"],
            handed_on=facts["handed_on"],
            starts=dict(facts["starts"]),
            begun=set(facts["begun"]),
            left=[(place, first) for place, first in facts["left"]],
        )
