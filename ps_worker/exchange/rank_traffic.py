"""The ranks of a group as a table's exchange sees them: gradients go to their owners, weights come back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import torch

from ps_worker.group.arrived_weights import Versions
from ps_worker.group.beside import Beside

Present = Sequence[Sequence[bool]]


class Reduced(Protocol):
    """The mean over ranks of those partitions of one bucket that this rank owns."""

    @property
    def partitions(self) -> Sequence[int]:
        """Their numbers."""

    @property
    def weight(self) -> float:
        """Of the push."""

    @property
    def present(self) -> Present:
        """By partition, whether a piece had a gradient on any rank."""

    @property
    def terms(self) -> Sequence[tuple[memoryview, ...]]:
        """By partition, what its mean is of, in rank order; none: it lies in this rank's flat gradients."""


class RankTraffic(Protocol):
    """Traffic of one table between ranks; used by the thread that pushes. It waits for other ranks.

    Between the first bucket that leaves beside the script and `beside.wait()` that thread is `beside`'s.
    """

    @property
    def owned(self) -> Sequence[int]:
        """The partitions that this rank pushes and pulls, ascending."""

    @property
    def brings(self) -> Sequence[int]:
        """The partitions whose first weights this rank brings, where the worker's start the table."""

    @property
    def sums(self) -> bool:
        """Whether flat gradients are summed in place with those of other ranks."""

    @property
    def descriptors(self) -> Sequence[int]:
        """By rank, of the memory in which terms lie; none: there are no terms."""

    @property
    def beside(self) -> Beside | None:
        """Makes calls of `push` while backward is running; None: all of them are made in `step()`."""

    def bring(self, weights: Sequence[torch.Tensor]) -> None:
        """Called before first weights are loaded: those that another rank has come to who brings them."""

    def brought(self) -> None:
        """Called when the first weights that this rank brings are on the shards; waits for all ranks."""

    def arrive(self, step: int) -> None:
        """Called when the script is in its step, and may wait from now on. May be called again."""

    def push(
        self,
        bucket: int,
        *,
        step: int,
        weight: float,
        hyper: int,
        present: Present,
        apart: bool,
        waits: bool,
    ) -> Sequence[Reduced]:
        """Called when a bucket's flat gradients are there; gives what is to be pushed by now, of any bucket.

        Args:
            bucket: its number.
            step: the worker's clock.
            weight: of the push in a mean.
            hyper: a checksum of the hyper-parameters, which all ranks have alike.
            present: by partition, whether a piece had a gradient on this rank.
            apart: terms are as good as their mean: who takes the push maps them.
            waits: until all ranks have this bucket.
        """

    def rest(self) -> Sequence[Reduced]:
        """Called when all buckets of a step are there; gives what `push` has not given of it."""

    def abstain(self, step: int) -> Sequence[Reduced]:
        """Called when this rank has nothing in a step; gives what the others have."""

    def want_by_bucket(self, wanted: bool) -> None:
        """Says whether the script goes on before all weights of its next steps are here."""

    @property
    def by_bucket(self) -> bool:
        """Whether the weights after the newest step come bucket by bucket, beside: the same on all ranks."""

    def spread(
        self,
        step: int,
        arrive: Callable[[], Sequence[int]],
        weights: Callable[[int], Sequence[torch.Tensor]],
        mapped: Callable[[], Collection[int]],
        bucket: int | None = None,
    ) -> Versions:
        """Called when weights are waited for; `arrive` waits for those that this rank owns.

        `weights` gives the flat weights of a version, by bucket, once they are here.

        Those of the shards in `mapped` are seen where the shards have them. Where weights come by bucket it
        is called with each, by all ranks in the same order, and gives versions of that bucket's partitions.
        """
