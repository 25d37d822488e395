"""A group whose servers form no mean clips that of its ranks, as one process clips it."""

from __future__ import annotations

import pytest
import torch

from ps_wire.spec.plan import Partition
from ps_worker.group.clipped_reduce import ClippedReduce
from ps_worker.group.ending import Ending
from ps_worker.group.gradient_reduce import GradientReduce, Reduced
from tests.unit.ps_worker.group.wires import Town, town

SIZES = (40, 24)  # elements of each bucket
PARTITIONS = [
    Partition(index=0, bucket=0, shard=0, offset=0, numel=25),
    Partition(index=1, bucket=0, shard=1, offset=25, numel=15),
    Partition(index=2, bucket=1, shard=0, offset=0, numel=24),
]
PRESENT = [[[True], [True]], [[True]]]  # by bucket and partition


def gradients(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(size, generator=generator) for size in SIZES]


class Table:
    """One table on all ranks of a group.

    Attributes:
        flat: gradients by rank.
    """

    def __init__(self, group: Town, max_norm: float) -> None:
        self.flat = [gradients(rank) for rank in range(len(group.channels))]
        self.reduces = [
            ClippedReduce(
                GradientReduce(channel, Ending(lambda: False), 0, flat, PARTITIONS, [1, 1, 1]),
                channel,
                flat,
                PARTITIONS,
                max_norm,
            )
            for channel, flat in zip(group.channels, self.flat, strict=True)
        ]

    def push(self, rank: int, step: int = 0) -> list[Reduced]:
        for bucket, there in enumerate(PRESENT):
            early = self.reduces[rank].push(bucket, step=step, weight=1.0, hyper=1, present=there)
            assert early == []
        return self.reduces[rank].rest()

    def owned(self) -> list[torch.Tensor]:
        """Each partition as its owner has it."""
        return [
            next(
                flat[it.bucket][it.offset : it.offset + it.numel]
                for reduce, flat in zip(self.reduces, self.flat, strict=True)
                if it.index in reduce.owned
            )
            for it in PARTITIONS
        ]


def clipped(ranks: int, max_norm: float) -> list[torch.Tensor]:
    """Partitions of the mean, as one process clips it."""
    means = [sum(of[1:], start=of[0]) / ranks for of in zip(*map(gradients, range(ranks)), strict=True)]
    leaves = [torch.nn.Parameter(torch.zeros_like(it)) for it in means]
    for leaf, mean in zip(leaves, means, strict=True):
        leaf.grad = mean.clone()
    torch.nn.utils.clip_grad_norm_(leaves, max_norm)
    flat = [leaf.grad for leaf in leaves]
    return [flat[it.bucket][it.offset : it.offset + it.numel] for it in PARTITIONS]


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_clip_their_mean_as_one_process_does_and_push_nothing_before(
    size: int, max_norm: float
) -> None:
    with town(size) as group:
        table = Table(group, max_norm)
        found = group.run(table.push)

    every = [it for reduced in found for it in reduced]
    assert sorted(index for it in every for index in it.partitions) == [0, 1, 2]
    assert all(len(it.present) == len(it.partitions) for it in every)
    for mine, wanted in zip(table.owned(), clipped(size, max_norm), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-6, atol=1e-7)


def test_a_rank_without_a_gradient_clips_what_it_owns_of_the_others_too() -> None:
    with town(2) as group:
        table = Table(group, 0.5)
        for step in range(2):  # nothing of a step before is left
            table.flat[0][0].copy_(gradients(0)[0])
            table.flat[0][1].copy_(gradients(0)[1])
            found = group.run(
                lambda rank, step=step: table.reduces[1].abstain(step) if rank else table.push(0, step)
            )

    assert sorted(index for it in found[1] for index in it.partitions) == table.reduces[1].owned
    assert [index for it in found[0] for index in it.partitions] == table.reduces[0].owned
    for mine, wanted in zip(table.owned(), clipped(1, 0.5), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-6, atol=1e-7)
