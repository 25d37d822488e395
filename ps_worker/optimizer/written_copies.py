"""Finds what a script writes past autograd (`p.data.clamp_()`) into parameters that weights are copied to.

Such a parameter lies on an accelerator, or has a smaller dtype than its table. What is written there bumps no
counter, is lost with the next weights, and trains one worker alone until then. So each step keeps a part of
one of them, which goes round, as the weights that came have left it, and compares it before the step ends.
Both happen where the parameter lies, in the order of what is computed there. Nobody waits for the answer: it
is on the host when the next step asks.

It must not know where weights come from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from ps_worker.memory.staging import Stagings, Ticket

PART_ELEMENTS = 1 << 16  # at most, but for those of one index: a step spends 0.1 ms on them


@dataclass(frozen=True, slots=True)
class _Kept:
    """A part of a parameter as it was when its weights had come."""

    index: int
    part: int
    address: int  # of the parameter; at another one it has been moved
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Asked:
    """A comparison under way: whether something was written."""

    index: int
    answer: torch.Tensor  # on the host
    ticket: Ticket


class WrittenCopies:
    """Looks at the parameters of one table. Used by the thread that trains."""

    def __init__(self, parameters: Sequence[torch.Tensor], stagings: Stagings) -> None:
        """Keeps nothing yet. `stagings` copy from the devices that parameters are on."""
        self._parameters = parameters
        self._stagings = stagings
        self._turn = 0
        self._kept: _Kept | None = None
        self._asked: _Asked | None = None

    def forget(self, filled: Collection[int]) -> None:
        """Weights of these parameters are about to come: what was kept is of those before."""
        if self._kept is not None and self._kept.index in filled:
            self._kept = None

    def keep(self, copied: Collection[int], filled: Collection[int]) -> None:
        """Weights have come, to the end: `forget` came before.

        Args:
            copied: the parameters that weights are copied to, by index.
            filled: those of them whose weights have come now.
        """
        index = sorted(copied)[self._turn % len(copied)] if copied else -1
        if index in filled:
            parameter, part = self._parameters[index], self._turn // len(copied)
            self._kept = _Kept(index, part, parameter.data_ptr(), _part(parameter, part).clone())

    def look(self) -> None:
        """A step is about to end: begins to compare. What is not as it was kept, the script has written."""
        kept, self._kept = self._kept, None
        self._turn += 1
        if kept is None:
            return
        parameter = self._parameters[kept.index]
        if parameter.data_ptr() != kept.address or parameter.device != kept.values.device:
            return
        written = (_bits(_part(parameter, kept.part)) != _bits(kept.values)).any()
        answer = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=not written.is_cpu)
        ticket = self._stagings.of(parameter.device).out([answer], [written])
        self._asked = _Asked(kept.index, answer, ticket)

    def found(self) -> int | None:
        """The parameter, by index, in which the step before has found something written; None: none."""
        asked, self._asked = self._asked, None
        if asked is None:
            return None
        asked.ticket.synchronize()
        return asked.index if asked.answer.item() else None


def _part(parameter: torch.Tensor, turn: int) -> torch.Tensor:
    """One of the parts that a parameter is cut into, along its longest dimension; they go round."""
    values = parameter.detach()
    if values.numel() <= PART_ELEMENTS:
        return values
    longest = max(range(values.dim()), key=lambda it: values.shape[it])
    size = values.shape[longest]
    width = max(1, PART_ELEMENTS * size // values.numel())
    start = turn % -(-size // width) * width
    return values.narrow(longest, start, min(width, size - start))


def _bits(values: torch.Tensor) -> torch.Tensor:
    """As whole numbers: a NaN is like a NaN."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.view(whole[values.element_size()])
