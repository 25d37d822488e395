"""Memory for versions of weights that are written ahead, in turns of all partitions of a table.

What a partition leaves is what the next one of that size writes to: so a table takes as much more as it has
steps under way, not twice its weights. What is left over is given back to the system. It must not know
partitions.
"""

from __future__ import annotations

import mmap
import threading

import torch

MAPPED = 1 << 20  # bytes from which memory is a mapping of its own, and the system has it back when it goes


def zeros(numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory for a partition's weights, shape (numel,): zeros, whose pages come when they are touched."""
    nbytes = numel * dtype.itemsize
    if nbytes < MAPPED:
        return torch.zeros(numel, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, nbytes), dtype=dtype)


class Spares:
    """Memory that nobody reads: as much as steps are under way at once. Thread-safe: `_lock`."""

    def __init__(self, kept: int = 2) -> None:
        """Has none yet; keeps `kept` of them, of whatever sizes."""
        self._kept = kept
        self._lock = threading.Lock()
        self._free: list[torch.Tensor] = []

    def take(self, like: torch.Tensor) -> torch.Tensor:
        """Memory of the shape (E,) and dtype of `like`, with any values; the caller's until `give`."""
        with self._lock:
            for at in reversed(range(len(self._free))):
                if self._free[at].dtype is like.dtype and self._free[at].shape == like.shape:
                    return self._free.pop(at)
        return zeros(like.numel(), like.dtype)

    def give(self, memory: torch.Tensor) -> None:
        """Nobody reads or writes it any more; where there are enough, the oldest goes."""
        with self._lock:
            self._free.append(memory)
            oldest = self._free.pop(0) if len(self._free) > self._kept else None
        del oldest  # its pages go outside the lock
