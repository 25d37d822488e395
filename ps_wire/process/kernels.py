"""Copies past the caches, mean and plain step in one pass over memory: what torch does, to the bit.

torch needs a kernel each for sum, quotient, look for non-finite values and step, and what lies between them
is written and read again: 1.7 times what memory allows for the whole. Where the compiled part is missing (no
compiler at the installation), cannot run, or differs from torch in one bit, there is none of it, and torch
does everything. It must not know partitions or workers.

Legend: E = elements of a partition or of a piece of it, P = pieces, W = contributions, R = ranks, of whose
terms a contribution is the mean.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TypeAlias

import torch

DRAWN = 5003  # numbers that kernels are tried on: a prime, so that they come at each place of a vector
STREAMED_BYTES = 1 << 20  # written past the caches from here on: a worker reads it later, on another core

Numbers: TypeAlias = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamPieces:
    """Where P pieces are that Adam steps: addresses of E elements each, float32, contiguous.

    Attributes:
        gradients: of this step.
        weights: those before the step.
        outs: those of after; no memory of `weights`.
        firsts: the moving averages of gradients, changed in place.
        seconds: those of their squares, changed in place.
        sizes: E of each.
    """

    gradients: Sequence[int]
    weights: Sequence[int]
    outs: Sequence[int]
    firsts: Sequence[int]
    seconds: Sequence[int]
    sizes: Sequence[int]


class Kernels:
    """The compiled functions. They let go of the interpreter; memory they are given must stay as it is."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Takes a library that has them."""
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._mean: Callable[..., int] = library.ps_rank_mean
        self._mean_step: Callable[..., int] = library.ps_rank_mean_step
        self._step_copy: Callable[..., int] = library.ps_step_copy
        self._finite: Callable[..., int] = library.ps_finite
        self._copy: Callable[..., None] = library.ps_copy
        library.ps_rank_mean.argtypes = [pointer, size, size, pointer, size]
        library.ps_rank_mean_step.argtypes = [
            pointer, size, size, pointer, ctypes.c_float, pointer, size, ctypes.c_int,
        ]  # fmt: skip
        library.ps_step_copy.argtypes = [
            pointer, pointer, ctypes.c_float, pointer, pointer, size, ctypes.c_int,
        ]  # fmt: skip
        self._adam: Callable[..., None] = library.ps_adam_pieces
        library.ps_adam_pieces.argtypes = [size, *[pointer] * 6, *[ctypes.c_float] * 8, size]
        library.ps_adam_pieces.restype = None
        library.ps_finite.argtypes = [pointer, size]
        library.ps_copy.argtypes, library.ps_copy.restype = [pointer, pointer, size], None

    def mean(self, terms: Numbers, out: torch.Tensor, ranks: int = 1) -> bool:
        """`((g0 + g1) + ...) / W`, with `g0 = ((t0 + t1) + ...) / R`, every sum and quotient rounded once.

        Args:
            terms: W * R tensors of shape (E,), for which `fit` holds; those of a gradient follow each other.
            out: shape (E,), float32, contiguous; one of the terms, or no memory of theirs.
            ranks: R.

        Returns:
            Whether each element of the mean is finite.
        """
        count = len(terms) // ranks
        return bool(self._mean(_pointers(terms), count, ranks, out.data_ptr(), out.numel()))

    def mean_step(
        self, terms: Numbers, weights: torch.Tensor, rate: float, out: torch.Tensor, ranks: int = 1
    ) -> bool:
        """`weights - rate * mean`, product and sum rounded once, as `torch.add(alpha=)` does.

        Args:
            terms: as `mean`.
            weights: shape (E,), float32, contiguous.
            rate: the learning rate.
            out: as `weights`; no memory of theirs, nor of a term.
            ranks: as `mean`.

        Returns:
            Whether each element of the mean is finite; else `out` is not to be used.
        """
        streams = out.nbytes >= STREAMED_BYTES
        pointers, size, count = _pointers(terms), out.numel(), len(terms) // ranks
        at, to = weights.data_ptr(), out.data_ptr()
        return bool(self._mean_step(pointers, count, ranks, at, rate, to, size, streams))

    def step_copy(
        self,
        gradient: torch.Tensor,
        weights: torch.Tensor,
        rate: float,
        out: torch.Tensor,
        copy: torch.Tensor,
    ) -> bool:
        """`weights - rate * gradient`, as `mean_step` rounds it, into two places in one pass.

        Args:
            gradient: shape (E,), for which `fit` holds.
            weights: shape (E,), float32, contiguous.
            rate: the learning rate.
            out: as `weights`; no memory of theirs, nor of the gradient.
            copy: likewise, and no memory of `out`.

        Returns:
            Whether each element of the gradient is finite; else neither is to be used.
        """
        streams = copy.nbytes >= STREAMED_BYTES
        at, to, also = weights.data_ptr(), out.data_ptr(), copy.data_ptr()
        return bool(self._step_copy(gradient.data_ptr(), at, rate, to, also, copy.numel(), streams))

    def adam(
        self,
        pieces: AdamPieces,
        *,
        first_share: float,
        second_kept: float,
        second_share: float,
        rate: float,
        root: float,
        eps: float,
        l2: float,
        keep: float,
    ) -> None:
        """A step of Adam on P pieces that have taken as many steps: see `adam` in kernels.c.

        Args:
            pieces: P of them.
            first_share: 1 - beta1, less than 0.5.
            second_kept: beta2.
            second_share: 1 - beta2.
            rate: the learning rate over the bias correction of the first moment.
            root: the root of the bias correction of the second one.
            eps: added to the root of the second moment.
            l2: of each weight, added to its gradient.
            keep: what each weight is multiplied by.
        """
        at, count = pieces, len(pieces.sizes)
        every = at.gradients, at.weights, at.outs, at.firsts, at.seconds, at.sizes
        arrays = [(ctypes.c_size_t * count)(*it) for it in every]  # an address is as large as a size
        numbers = first_share, second_kept, second_share, rate, root, eps, l2, keep
        self._adam(count, *arrays, *numbers, STREAMED_BYTES // 4)

    def finite(self, values: torch.Tensor) -> bool:
        """Whether each of the values, shape (E,), float32, contiguous, is finite."""
        return bool(self._finite(values.data_ptr(), values.numel()))

    def copy(self, source: int, target: int, size: int) -> None:
        """Copies `size` bytes from one address to another, past the caches; they do not overlap."""
        self._copy(source, target, size)


def fit(terms: Numbers) -> bool:
    """Whether the kernels take such gradients: float32, in one piece each."""
    return all(term.dtype is torch.float32 and term.is_contiguous() for term in terms)


def _pointers(tensors: Numbers) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def load() -> tuple[Kernels | None, str]:
    """The kernels of this installation, if it has any that do here what torch does; and what was found."""
    found = [
        path
        for suffix in EXTENSION_SUFFIXES
        if (path := Path(__file__).with_name(f"_kernels{suffix}")).is_file()
    ]
    if not found:
        return None, "torch's (no compiled kernels: install with a C compiler for them)"
    try:
        library = ctypes.CDLL(str(found[0]))
        supported = library.ps_supported()
        kernels = Kernels(library) if supported else None
    except (OSError, AttributeError) as error:
        return None, f"torch's (the compiled kernels cannot be loaded: {error}; install again)"
    if kernels is None:
        return None, "torch's (there are no compiled kernels for this processor)"
    if not same_as_torch(kernels):
        return None, "torch's (the compiled kernels differ from it on this machine)"
    return kernels, "compiled, and torch's"


def same_as_torch(kernels: Kernels) -> bool:
    """Whether means and steps are torch's to the bit here, over many magnitudes and odd lengths."""
    random = torch.Generator().manual_seed(1)

    def numbers(size: int) -> torch.Tensor:
        """Some are denormal, some large; many are the same ones again, for each takes its time."""
        drawn = min(size, DRAWN)
        exponents = torch.randint(-42, 4, (drawn,), generator=random)
        few = torch.randn(drawn, generator=random) * torch.pow(10.0, exponents)
        return few.repeat(-(-size // drawn))[:size]

    large = STREAMED_BYTES // 4 + 3
    for workers, ranks, size in (
        (1, 1, 100), (2, 1, 4097), (2, 1, large), (3, 1, 1013), (8, 1, 77), (2, 2, large), (3, 3, 1013),
    ):  # fmt: skip
        terms, weights = [numbers(size) for _ in range(workers * ranks)], numbers(size)
        gradients = [_mean(terms[at : at + ranks]) for at in range(0, len(terms), ranks)]
        expected = _mean(gradients)
        mean, stepped = torch.empty(size), torch.empty(size)
        finite = kernels.mean(terms, mean, ranks), kernels.mean_step(terms, weights, 0.1, stepped, ranks)
        if finite != (True, True) or not same_bits(mean, expected):
            return False
        kernels.mean(terms, terms[-1], ranks)  # in place
        if not same_bits(terms[-1], expected):
            return False
        after = torch.add(weights, expected, alpha=-0.1)
        if not same_bits(stepped, after):
            return False
        copy = torch.empty(size)
        whole = kernels.step_copy(expected, weights, 0.1, mean, copy)
        if not whole or not same_bits(mean, after) or not same_bits(copy, after):
            return False
    return True


def _mean(parts: Numbers) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total.add_(part)
    return total.div_(len(parts))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both, of shape (E,) and float32, are the same also where they are zero or no number."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


KERNELS, FOUND = load()
