"""Memory for versions of weights that are written ahead, in turns of all partitions of a table.

What a partition leaves is what the next one of that size writes to: so a table takes as much more as it has
steps under way, of each size. What replies have held beyond that is let go. It must not know partitions.
"""

from __future__ import annotations

import torch

KEPT = 8  # of one size; as many steps of a table as are under way at once


class Spares:
    """Memory that nobody reads. Thread-safe: a list changes in one operation; a few too many do no harm."""

    def __init__(self) -> None:
        """Has none yet."""
        self._free: dict[tuple[torch.dtype, int], list[torch.Tensor]] = {}

    def take(self, like: torch.Tensor) -> torch.Tensor:
        """Memory of the shape and dtype of `like`, with any values; the caller's until `give`."""
        try:
            return self._of(like).pop()
        except IndexError:
            return torch.empty_like(like)

    def give(self, memory: torch.Tensor) -> None:
        """Nobody reads or writes it any more; freed where there are enough of its size."""
        kept = self._of(memory)
        if len(kept) < KEPT:
            kept.append(memory)

    def _of(self, memory: torch.Tensor) -> list[torch.Tensor]:
        return self._free.setdefault((memory.dtype, memory.numel()), [])
