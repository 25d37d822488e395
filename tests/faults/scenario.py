"""What the workers of these tests train: gradients that anybody can make again, and who was right in the end.

Legend: N = elements of the table's only parameter.
"""

from __future__ import annotations

import torch

import ps_worker as ps
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, ParameterSpec, TableSpec

NUMEL = 4096  # N: float32, two partitions on each of two shards
OPTIMIZER = ps.Adam(lr=0.01)
BUCKETS = BucketOptions(partition_bytes=4096)


def start() -> torch.Tensor:
    """Weights that a job begins with, shape (N,)."""
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(7))


def gradient(worker: int, step: int) -> torch.Tensor:
    """What a worker pushes at a step, shape (N,)."""
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(1_000_003 * (worker + 1) + step))


def part(worker: int, step: int, rank: int, size: int) -> torch.Tensor:
    """What a rank of a group has at a step, shape (N,): the mean of all ranks is `gradient`, to the bit.

    Each element is on one rank alone, and G times as large, for a G that is a power of two.
    """
    assert size & (size - 1) == 0, "a quotient is exact"
    mine = (torch.arange(NUMEL) + step) % size == rank
    return gradient(worker, step) * size * mine


def plan(num_shards: int) -> Plan:
    """How the table is cut."""
    spec = TableSpec(
        number=0,
        parameters=(ParameterSpec(name="w", shape=(NUMEL,)),),
        optimizer=OPTIMIZER.spec(),
        buckets=BUCKETS,
    )
    return Plan(spec, num_shards)
