"""An epoch of a loader that was dealt to workers, and its shares as far as known. Values, for `EpochBook`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from ps_wire.process.ranks import MAX_SIZE
from ps_wire.snapshot.json_fields import MAX_SAMPLES
from ps_wire.spec.epochs import EpochPiece


@dataclass(slots=True)
class DealtEpoch:
    """An epoch of a loader that was dealt to workers, with their shares, each named by its worker."""

    owners: dict[int, int]  # worker -> incarnation, or one of the words of `epoch_book` for it
    ranks: dict[int, int]  # worker -> ranks that its share was dealt to
    samples: int = 0  # 0: not known
    used: int = 0  # in pieces that are closed
    handed_on: int = 0
    starts: dict[int, int] = field(default_factory=dict)  # worker -> samples of its share used before
    begun: set[int] = field(default_factory=set)  # workers
    left: list[tuple[int, int]] = field(default_factory=list)  # share, first sample
    _places: dict[int, int] = field(init=False, compare=False)  # share -> ranks that come before
    _count: int = field(init=False, compare=False)  # of all ranks
    _too_many: int = field(init=False, compare=False)  # so many ranks, or more, can take nothing that is left

    def __post_init__(self) -> None:
        places = accumulate((self.ranks[share] for share in sorted(self.ranks)), initial=0)
        self._places = dict(zip(sorted(self.ranks), places, strict=False))
        self._count = sum(self.ranks.values())
        self._too_many = MAX_SIZE + 1

    def piece(self, number: int, share: int, first: int, *, own: bool, left_over: bool) -> EpochPiece:
        """A share from a sample on; `number` is the epoch's."""
        return EpochPiece(
            epoch=number,
            place=self._places[share],
            ranks=self.ranks[share],
            count=self._count,
            first=first,
            own=own,
            left_over=left_over,
        )

    def within(self, share: int, first: int) -> int:
        """A place in a share, no further than its end."""
        if not self.samples:
            return min(first, MAX_SAMPLES)
        return min(first, self._length(share))

    def _length(self, share: int) -> int:
        return self.piece(0, share, 0, own=True, left_over=False).length(self.samples)

    def begin(self, worker: int) -> None:
        """This worker hands out its share from now on."""
        self.begun.add(worker)

    def own(self, worker: int, incarnation: int) -> None:
        """The share of a worker that was awaited is this incarnation's."""
        self.owners[worker] = incarnation

    def leave_over(self, share: int, first: int) -> None:
        """A share is nobody's from this sample on."""
        self.left.append((share, self.within(share, first)))
        self._too_many = MAX_SIZE + 1

    def pop_left(self, worker: int, ranks: int, *, own: bool) -> tuple[int, int] | None:
        """Removes and returns what this worker may take of what is left over; of its own share first.

        Args:
            worker: who takes it.
            ranks: of it.
            own: it takes of its own share alone.
        """
        if ranks >= self._too_many:
            return None
        mine = [left for left in self.left if left[0] == worker]
        may = mine if own else [*mine, *self.left]
        found = next((left for left in may if self.fits(*left, ranks)), None)
        if found is not None:
            self.left.remove(found)
        elif not own:
            self._too_many = ranks
        return found

    def fits(self, share: int, first: int, ranks: int) -> bool:
        """Whether so many ranks have a sample each in a share from a sample on, or nothing is left of it.

        Else a group does not take it: smaller ones do. It does where the samples of the epoch are not known.
        """
        length = self._length(share) - first if self.samples else 0
        return length <= 0 or length >= ranks

    def count(self, samples: int, *, handed_on: int) -> None:
        """So many samples more are used in pieces that are closed, of which some are `handed_on`."""
        self.used += samples
        self.handed_on += handed_on

    def give_up(self, workers: Collection[int], owner: int, *, left_over: bool) -> None:
        """Those of these who have not begun their shares never will; they are `owner`'s from now on."""
        for worker in sorted(self.owners):
            if worker in workers and worker not in self.begun:
                self.owners[worker] = owner
                self.begun.add(worker)
                if left_over:
                    self.leave_over(worker, self.starts.get(worker, 0))

    def dump(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "owners": list(self.owners.items()),
            "ranks": list(self.ranks.items()),
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
            ranks=dict(facts["ranks"]),
            samples=facts["samples"],
            used=facts["used"],
            handed_on=facts["handed_on"],
            starts=dict(facts["starts"]),
            begun=set(facts["begun"]),
            left=[(share, first) for share, first in facts["left"]],
        )
