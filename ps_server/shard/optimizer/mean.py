"""The weighted mean of gradients, in rank order: the arithmetic behind law 1, to the bit.

Legend: E = elements of a partition, W = contributions, R = ranks, whose terms a contribution is the mean of.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ps_wire.process import kernels, trace
from ps_wire.process.rank_mean import NARROW, rank_mean


class Scratch(threading.local):
    """Two buffers per thread, grown to the largest partition and kept: no allocation when it is warm."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.dtype, int], torch.Tensor] = {}

    def take(self, dtype: torch.dtype, numel: int, which: int = 0) -> torch.Tensor:
        """A buffer of E elements; `which` tells the two apart. Valid until this thread takes it again."""
        buffer = self._buffers.get((dtype, which))
        if buffer is None or buffer.numel() < numel:
            buffer = self._buffers[dtype, which] = torch.empty(numel, dtype=dtype)
        return buffer[:numel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean of gradients.

    Attributes:
        values: shape (E,), valid until the scratch that it lies in is used again.
        finite: whether each element is; None: nobody has looked.
    """

    values: torch.Tensor
    finite: bool | None = None


@trace.traced("mean")
def mean(terms: Sequence[torch.Tensor], weights: Sequence[float], scratch: Scratch, ranks: int = 1) -> Mean:
    """`(w0*g0 + w1*g1 + ...) / (w0 + w1 + ...)`, every product, sum and quotient rounded once.

    With all weights 1 that is `((g0 + g1) + ...) / W`. `torch.add(alpha=)` would fuse product and sum and
    differ in 18 % of the elements.

    Gradients of 16 bits are widened before, exactly.

    Args:
        terms: W * R tensors of shape (E,), in rank order, those of a gradient one behind the other; they are
            only read. A gradient is the mean of its terms.
        weights: W numbers.
        scratch: where the result lies.
        ranks: R.

    Returns:
        The mean; for one term of weight 1, that term itself.
    """
    first = terms[0]
    equal = is_plain(weights)
    if equal and len(terms) == 1 and first.dtype not in NARROW:
        return Mean(values=first)
    if equal and kernels.KERNELS is not None and kernels.fit(terms):
        out = scratch.take(first.dtype, first.numel())
        return Mean(values=out, finite=kernels.KERNELS.mean(terms, out, ranks))
    gradients = terms
    if ranks > 1:
        groups = [terms[at : at + ranks] for at in range(0, len(terms), ranks)]
        gradients = [rank_mean(group, torch.empty_like(first)) for group in groups]
    return Mean(values=_mean_by_torch(gradients, weights, scratch))


def is_plain(weights: Sequence[float]) -> bool:
    """Whether a mean with these weights is one without any."""
    return all(weight == 1.0 for weight in weights)


def _mean_by_torch(
    gradients: Sequence[torch.Tensor], weights: Sequence[float], scratch: Scratch
) -> torch.Tensor:
    if any(gradient.dtype in NARROW for gradient in gradients):
        return _mean_widened(gradients, weights, scratch)
    first = gradients[0]
    out = scratch.take(first.dtype, first.numel())
    if is_plain(weights):
        torch.add(first, gradients[1], out=out)
        for gradient in gradients[2:]:
            out.add_(gradient)
        return out.div_(len(gradients))
    torch.mul(first, weights[0], out=out)
    product = scratch.take(first.dtype, first.numel(), 1)
    for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
        out.add_(torch.mul(gradient, weight, out=product))
    return out.div_(sum(weights))


def _mean_widened(
    gradients: Sequence[torch.Tensor], weights: Sequence[float], scratch: Scratch
) -> torch.Tensor:
    """A product with 1 and a quotient by 1 are exact: one way for all weights."""
    numel = gradients[0].numel()
    out = scratch.take(torch.float32, numel).copy_(gradients[0]).mul_(weights[0])
    product = scratch.take(torch.float32, numel, 1)
    for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
        out.add_(product.copy_(gradient).mul_(weight))
    return out.div_(sum(weights))


def widened(gradient: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """One of 16 bits in float32, in `scratch`; another one itself."""
    if gradient.dtype not in NARROW:
        return gradient
    return scratch.take(torch.float32, gradient.numel()).copy_(gradient)
