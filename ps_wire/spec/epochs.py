"""A piece of an epoch that a worker hands out, and how far it has come in it: pure values of both ends.

Legend: an epoch of a loader is dealt in `count` shares; a piece is one of them, from a batch of it on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPiece:
    """One share of one epoch, or the rest of it.

    Attributes:
        epoch: whose order it is; of what was left over by others, it may be an earlier one than the loop's.
        place: of the share among those of the epoch.
        count: shares of the epoch.
        first: batches of the share that come before it.
    """

    epoch: int
    place: int
    count: int
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceMark:
    """A worker's place in its piece after its first `step` steps, and its pace from there.

    Attributes:
        step: of the worker, over its tables the largest.
        batches: of the piece that went into them.
        samples: of these batches.
        pace_batches: that each step from then on takes.
        pace_samples: of these.
    """

    step: int = 0
    batches: int = 0
    samples: int = 0
    pace_batches: int = 0
    pace_samples: int = 0

    def at(self, step: int) -> tuple[int, int]:
        """Batches and samples of the piece that go into the first `step` steps, by this pace."""
        ahead = step - self.step
        return self.batches + ahead * self.pace_batches, self.samples + ahead * self.pace_samples
