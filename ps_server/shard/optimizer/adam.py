"""A step of Adam or AdamW from one memory into another, to the bit what torch's fused kernel does in place.

Weights in two halves are written into the other one. torch's kernel would need them copied there first, which
takes half as long as the step itself. Used only where the compiled kernel does what torch's does, which is
tried before the first use; it must not know halves.

Legend: E = elements of a piece.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ps_wire.process import kernels
from ps_wire.process.kernels import STREAMED_BYTES, AdamPieces, Kernels, same_bits
from ps_wire.spec.table import Group

ITEM_BYTES = 4  # float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """Hyper-parameters for which `step` is what torch does.

    Kingma and Ba (arXiv:1412.6980); `decoupled` weight decay: Loshchilov and Hutter (arXiv:1711.05101).
    """

    built: Kernels
    rate: float
    betas: tuple[float, float]
    eps: float
    decay: float
    decoupled: bool

    def step_pieces(
        self,
        states: Sequence[Mapping[str, torch.Tensor]],
        places: Sequence[slice],
        flags: Sequence[bool],
        gradient: torch.Tensor,
        before: torch.Tensor,
        after: torch.Tensor,
    ) -> list[bool]:
        """A step of each piece that has a gradient and a state; the others are only copied.

        No tensor is made on the way, for each that goes lets go of the interpreter, which others want.

        Args:
            states: as torch has them, changed in place; empty where torch is to make one.
            places: of the pieces in what follows.
            flags: which of them have a gradient.
            gradient: shape (E,).
            before: the weights, shape (E,).
            after: where the new ones go, shape (E,).

        Returns:
            Which have a gradient and no state: these are for torch.
        """
        left = [there and not state for state, there in zip(states, flags, strict=True)]
        by_count: dict[float, list[int]] = {}
        for piece, (state, there) in enumerate(zip(states, flags, strict=True)):
            if there and state:
                by_count.setdefault(_counted(state["step"]), []).append(piece)
            else:
                after[places[piece]] = before[places[piece]]
        for count, pieces in by_count.items():
            starts = [ITEM_BYTES * places[piece].start for piece in pieces]
            stepped = AdamPieces(
                gradients=[gradient.data_ptr() + start for start in starts],
                weights=[before.data_ptr() + start for start in starts],
                outs=[after.data_ptr() + start for start in starts],
                firsts=[states[piece]["exp_avg"].data_ptr() for piece in pieces],
                seconds=[states[piece]["exp_avg_sq"].data_ptr() for piece in pieces],
                sizes=[places[piece].stop - places[piece].start for piece in pieces],
            )
            self.step(count, stepped)
        return left

    def step(self, count: float, pieces: AdamPieces) -> None:
        """One step of some pieces, all of them in one call.

        Args:
            count: steps of each of these, with this one.
            pieces: of which the moving averages are changed in place.
        """
        beta1, beta2 = self.betas
        self.built.adam(
            pieces,
            first_share=1 - beta1,
            second_kept=beta2,
            second_share=1 - beta2,
            rate=self.rate / (1 - beta1**count),
            root=math.sqrt(1 - beta2**count),
            eps=self.eps,
            l2=0.0 if self.decoupled else self.decay,
            keep=1 - self.rate * self.decay if self.decoupled else 1.0,
        )


def across(name: str, group: Group, pieces: Sequence[torch.Tensor]) -> Adam | None:
    """The optimizer of that name with such hyper-parameters; None: torch's kernel is to do it.

    Args:
        name: of an optimizer of torch.
        group: of a table.
        pieces: weights that it would step.
    """
    if name not in ("Adam", "AdamW") or not all(it.dtype is torch.float32 and it.is_cpu for it in pieces):
        return None
    values: dict[str, Any] = dict(group)
    betas = values["betas"]
    takes = isinstance(values["lr"], float) and betas[0] > 0.51 and not values.get("amsgrad")
    if not takes or values.get("maximize") or kernels.KERNELS is None or not same_as_torch(kernels.KERNELS):
        return None
    decoupled = name == "AdamW" or bool(values.get("decoupled_weight_decay"))
    return Adam(
        built=kernels.KERNELS,
        rate=values["lr"],
        betas=(betas[0], betas[1]),
        eps=values["eps"],
        decay=values["weight_decay"],
        decoupled=decoupled,
    )


def _counted(step: torch.Tensor) -> float:
    """Counts one more step, where torch has the number; returns it."""
    if step.dtype is not torch.float32 or not step.is_cpu:
        return float(step.add_(1).item())
    number = (ctypes.c_float * 1).from_address(step.data_ptr())
    number[0] += 1.0
    return number[0]


@cache
def same_as_torch(built: Kernels) -> bool:
    """Whether steps are torch's to the bit here, over many magnitudes and odd lengths."""
    random = torch.Generator().manual_seed(1)
    for size in (1, 15, 1013, STREAMED_BYTES // 4 + 7):
        for decay, decoupled in ((0.0, False), (0.1, False), (0.1, True)):
            adam = Adam(
                built=built, rate=0.01, betas=(0.9, 0.999), eps=1e-8, decay=decay, decoupled=decoupled
            )
            if not _same_steps(adam, size, random):
                return False
    return True


def _same_steps(adam: Adam, size: int, random: torch.Generator) -> bool:
    weights, first, second = torch.randn(size, generator=random), torch.zeros(size), torch.zeros(size)
    theirs = [weights.clone(), first.clone(), second.clone()]
    fused = torch.ops.aten._fused_adamw_ if adam.decoupled else torch.ops.aten._fused_adam_
    for count in (1, 2, 3):
        exponents = torch.randint(-30, 3, (size,), generator=random)
        gradient = torch.randn(size, generator=random) * torch.pow(10.0, exponents)
        out = torch.empty(size)
        g, w, o, m, v = ([it.data_ptr()] for it in (gradient, weights, out, first, second))
        adam.step(count, AdamPieces(gradients=g, weights=w, outs=o, firsts=m, seconds=v, sizes=[size]))
        weights = out
        try:
            fused(
                theirs[:1],
                [gradient],
                theirs[1:2],
                theirs[2:],
                [],
                [torch.tensor(float(count))],
                lr=adam.rate,
                beta1=adam.betas[0],
                beta2=adam.betas[1],
                weight_decay=adam.decay,
                eps=adam.eps,
                amsgrad=False,
                maximize=False,
            )
        except (RuntimeError, TypeError):  # a torch whose kernel is called another way
            return False
        pairs = zip((weights, first, second), theirs, strict=True)
        if not all(itertools.starmap(same_bits, pairs)):
            return False
    return True
