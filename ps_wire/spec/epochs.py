"""A piece of an epoch that a worker hands out, and how far it has come in it: pure values of both ends.

Legend: N = samples of an epoch, R = ranks of all workers that share it, in the order of workers' numbers. A
worker that is no group is one rank. Each rank has N // R samples, the first N % R of them one more, and a
worker's share is that of its ranks together, which lie side by side. So shares of groups of different sizes
have equally many batches. A place in a share is a number of samples: whoever takes the rest of it may cut
other batches.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPiece:
    """One share of one epoch, or the rest of it.

    Attributes:
        epoch: whose order it is; of what was left over by others, it may be an earlier one than the loop's.
        place: ranks that come before those of the share.
        ranks: of the worker that it was dealt to.
        count: ranks of all who share the epoch, R.
        first: samples of the share that come before it.
        own: it is of the share that was dealt to the number of the worker that has it.
        left_over: somebody had it before, perhaps the same worker: how much of it is used is known.
    """

    epoch: int
    place: int
    count: int
    ranks: int = 1
    first: int = 0
    own: bool = True
    left_over: bool = False

    def bounds(self, num_samples: int) -> tuple[int, int]:
        """The share's part of an epoch of N samples: its first place, and the one behind its last."""
        least, more = divmod(num_samples, self.count)
        start, end = (ranks * least + min(ranks, more) for ranks in (self.place, self.place + self.ranks))
        return start, end

    def length(self, num_samples: int) -> int:
        """Samples of this piece, in an epoch of N."""
        start, end = self.bounds(num_samples)
        return max(end - start - self.first, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceMark:
    """A worker's place in its piece after its first `step` steps, and its pace from there.

    Attributes:
        step: of the worker, over its tables the largest.
        samples: of the piece that went into them.
        pace: samples that each step from then on takes.
    """

    step: int = 0
    samples: int = 0
    pace: int = 0

    def at(self, step: int) -> int:
        """Samples of the piece that go into the first `step` steps, by this pace."""
        return self.samples + (step - self.step) * self.pace
