"""The way of one table's gradients between ranks, whose mean is clipped before anything of a step leaves.

As `GradientReduce`, but what a rank pushes of a step comes behind the last bucket: then the norm of the mean
is known. All ranks add the squares of what each owns, in rank order, so all find the same factor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from ps_wire.spec.plan import Partition
from ps_worker.group.arrived_weights import Versions
from ps_worker.group.channel import Channel
from ps_worker.group.gradient_reduce import GradientReduce, Present, Reduced

NORM_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds it


class ClippedReduce:
    """The way of one table between ranks, which clips.

    Attributes:
        owned: see `GradientReduce`.
        brings: see `GradientReduce`.
        sums: see `GradientReduce`.
        descriptors: none: what is clipped lies in flat gradients.
        beside: see `GradientReduce`.
    """

    descriptors: Sequence[int] = ()

    def __init__(
        self,
        reduce: GradientReduce,
        channel: Channel,
        gradients: Sequence[torch.Tensor],
        partitions: Sequence[Partition],
        max_norm: float,
    ) -> None:
        """Nothing is under way.

        Args:
            reduce: takes the mean.
            channel: to the other ranks.
            gradients: flat, by bucket.
            partitions: of the table.
            max_norm: the largest L2 norm of the mean over all parameters.
        """
        self._reduce = reduce
        self._channel = channel
        self._gradients = gradients
        self._partitions = partitions
        self._max_norm = max_norm
        self._held: list[Reduced] = []  # of the step that is under way
        self._step = -1
        self.owned, self.brings, self.sums = reduce.owned, reduce.brings, reduce.sums
        self.beside = reduce.beside

    def arrive(self, step: int) -> None:
        """See `GradientReduce`."""
        self._reduce.arrive(step)

    def push(
        self,
        bucket: int,
        *,
        step: int,
        weight: float,
        hyper: int,
        present: Present,
        apart: bool = False,  # noqa: ARG002 - the mean is needed here
        waits: bool = False,
    ) -> list[Reduced]:
        """See `GradientReduce`; gives nothing to push before `rest`."""
        self._step = step
        self._held += self._reduce.push(
            bucket, step=step, weight=weight, hyper=hyper, present=present, waits=waits
        )
        return []

    def rest(self) -> list[Reduced]:
        """See `GradientReduce`; all of the step."""
        held, self._held = [*self._held, *self._reduce.rest()], []
        if held:
            self._clip(held, self._step)
        return held

    def abstain(self, step: int) -> list[Reduced]:
        """See `GradientReduce`."""
        every = self._reduce.abstain(step)
        if every:
            self._clip(every, step)
        return every

    def bring(self, weights: Sequence[torch.Tensor]) -> None:
        """See `GradientReduce`."""
        self._reduce.bring(weights)

    def brought(self) -> None:
        """See `GradientReduce`."""
        self._reduce.brought()

    def want_by_bucket(self, wanted: bool) -> None:
        """See `GradientReduce`."""
        self._reduce.want_by_bucket(wanted)

    @property
    def by_bucket(self) -> bool:
        """See `GradientReduce`."""
        return self._reduce.by_bucket

    def spread(
        self,
        step: int,
        arrive: Callable[[], Sequence[int]],
        weights: Callable[[int], Sequence[torch.Tensor]],
        mapped: Callable[[], Collection[int]],
        bucket: int | None = None,
    ) -> Versions:
        """See `GradientReduce`."""
        return self._reduce.spread(step, arrive, weights, mapped, bucket)

    def _clip(self, every: Sequence[Reduced], step: int) -> None:
        """Scales what this rank owns of the mean of all buckets, in place."""
        mine = [self._part(index) for it in every for index in it.partitions]
        squares = sum(float(torch.linalg.vector_norm(it, dtype=torch.float64)) ** 2 for it in mine)
        said = self._channel.share(f"the norm of step {step}", {"squares": squares})
        norm = sum(float(one.fields["squares"]) for one in said) ** 0.5
        ratio = self._max_norm / torch.tensor(norm + NORM_EPSILON, device="cpu")
        factor = torch.clamp(ratio, max=1.0).item()
        for part in mine:
            part.mul_(factor)

    def _part(self, index: int) -> torch.Tensor:
        it = self._partitions[index]
        return self._gradients[it.bucket][it.offset : it.offset + it.numel]
