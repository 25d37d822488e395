"""The mean of what the ranks of a group have, in rank order: the same bits whoever takes it.

Ranks take it, who sends takes it where nobody else can read what they have, and servers do. It must not know
frames or partitions.

Legend: E = elements of a partition.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ps_wire.process import kernels

NARROW = (torch.bfloat16, torch.float16)


def rank_mean(parts: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """`((g0 + g1) + ...) / G`, each sum and quotient rounded once; of 16 bits in float32, rounded at the end.

    Args:
        parts: of shape (E,) each, in rank order; they are only read.
        out: shape (E,), of their dtype; one of the parts, or no memory of theirs.

    Returns:
        `out`.
    """
    if len(parts) == 1:
        return out if parts[0] is out else out.copy_(parts[0])
    if kernels.KERNELS is not None and kernels.fit([*parts, out]):
        kernels.KERNELS.mean(parts, out)
        return out
    total = torch.add(parts[0].float(), parts[1]) if out.dtype in NARROW else parts[0] + parts[1]
    for part in parts[2:]:
        total.add_(part)
    return out.copy_(total.div_(len(parts)))
