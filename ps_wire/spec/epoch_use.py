"""The use of an epoch's samples, counted over all workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochUse:
    """Counts of the samples of an epoch of a loader, over all workers.

    Attributes:
        loader: its number, in the order in which workers make them.
        epoch: of it.
        samples: of the epoch; 0: an iterable dataset has not said, or the job did not begin it.
        used: the steps that were made of them are committed.
        handed_on: of these, by another worker than the one whose share they were in.
        over: nobody hands out any more of it.
    """

    loader: int
    epoch: int
    samples: int
    used: int
    handed_on: int
    over: bool

    @property
    def unused(self) -> int:
        """Samples that no committed step was made of; 0 where `samples` is not known."""
        return max(self.samples - self.used, 0)
