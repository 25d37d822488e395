"""Both halves of a shard's weights of one table, in memory that workers of this host map and cannot write.

Under plain BSP a shard writes version v+1 into one half while workers read v in the other: a step closes when
all of them have pushed it, and who pushes step v no longer reads version v-1. Half h holds the versions of
that parity.
"""

from __future__ import annotations

import mmap
import os
import weakref

import torch

from ps_wire.sockets import lent_memory, shared_memory
from ps_wire.sockets.shared_memory import SliceLayout
from ps_wire.spec.plan import Partition, Plan


class Region:
    """Memory for a shard's weights of one table."""

    def __init__(self, plan: Plan, shard: int) -> None:
        """Lays it out; nothing is allocated."""
        self._plan = plan
        self._layout = SliceLayout(plan, shard)
        self.nbytes = self._layout.nbytes

    def of(self, memory: mmap.mmap, partition: Partition) -> torch.Tensor:
        """One of the shard's partitions in such memory: shape (E,), E = its elements."""
        dtype = getattr(torch, self._plan.buckets[partition.bucket].dtype)
        start = self._layout.start_of(partition)
        return torch.frombuffer(memory, dtype=dtype, count=partition.numel, offset=start)


class DoubleBuffer:
    """Two halves of shared memory for the weights of one table.

    It lives as long as a tensor of it, or a worker that maps it.

    Attributes:
        descriptors: of both, to be sent to workers; open as long as this object lives.
    """

    def __init__(self, plan: Plan, shard: int) -> None:
        """Makes zeros.

        Raises:
            OSError: the system has no descriptor or memory left, or cannot seal memory against writers.
        """
        self._region = Region(plan, shard)
        self._memory: list[mmap.mmap] = []
        self.descriptors: tuple[int, ...] = ()
        for _ in range(2):
            descriptor, memory = shared_memory.create_readable(self._region.nbytes)
            weakref.finalize(memory, os.close, descriptor)
            lent_memory.lend(memory, descriptor)
            self.descriptors += (descriptor,)
            self._memory.append(memory)

    def of(self, partition: Partition) -> tuple[torch.Tensor, torch.Tensor]:
        """Both halves of one of the shard's partitions, shape (E,) each; E = its elements."""
        first, second = [self._region.of(memory, partition) for memory in self._memory]
        return first, second
