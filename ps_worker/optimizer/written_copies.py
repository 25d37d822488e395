"""Finds what a script writes past autograd (`p.data.clamp_()`) into parameters that weights are copied to.

Such a parameter lies on an accelerator, or has a smaller dtype than its table. What is written there bumps no
counter, is lost with the next weights, and trains one worker alone until then. So in each step a part of one
of them, which goes round, is kept as the weights that came have left it. It is compared twice: as the step
ends, and before the next weights are copied to it. All of that happens where the parameter lies, in the order
of what is computed there. Nobody waits for an answer: it is on the host when the next step asks.

It must not know where weights come from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from ps_worker.memory.staging import Stagings, Ticket

PART_ELEMENTS = 1 << 16  # about, and those of one index at least


@dataclass(frozen=True, slots=True)
class _Kept:
    """A part of a parameter as it was when its weights had come."""

    index: int
    part: int
    address: int  # of the parameter, and its shape: with others it has been moved
    shape: torch.Size
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Asked:
    """A comparison under way: whether something was written."""

    kept: _Kept  # whose memory is read until then
    answer: torch.Tensor  # on the host
    ticket: Ticket


class WrittenCopies:
    """Looks at the parameters of one table. Used by the thread that trains."""

    def __init__(self, parameters: Sequence[torch.Tensor], stagings: Stagings) -> None:
        """Keeps nothing yet. `stagings` copy from the devices that parameters are on."""
        self._parameters = parameters
        self._stagings = stagings
        self._order: list[int] = []  # in which parameters have their turns
        self._turn = 0
        self._kept: _Kept | None = None  # with the weights of this step
        self._looked: _Kept | None = None  # with those before, and compared as that step ended
        self._asked: list[_Asked] = []

    def forget(self, filled: Collection[int]) -> bool:
        """Weights of these parameters are about to come: what was kept is of those before.

        Returns:
            Whether it is compared for the last time: the weights have to wait for what was queued until now.
        """
        looked, compares = self._looked, False
        if looked is not None and looked.index in filled:
            self._looked = None
            compares = self._compare(looked)
        if self._kept is not None and self._kept.index in filled:
            self._kept = None
        return compares

    def keep(self, copied: Collection[int], filled: Collection[int]) -> None:
        """Weights have come, to the end: `forget` came before.

        Args:
            copied: the parameters that weights are copied to, by index; none is taken away.
            filled: those of them whose weights have come now.
        """
        if len(self._order) != len(copied):
            self._order = sorted(copied)
        if not self._order:
            return
        part, place = divmod(self._turn, len(self._order))
        index = self._order[place]
        if index in filled:
            it = self._parameters[index]
            self._kept = _Kept(index, part, it.data_ptr(), it.shape, _part(it, part).clone())

    def look(self) -> None:
        """A step is about to end: begins to compare. What is not as it was kept, the script has written."""
        self._looked, self._kept = self._kept, None
        self._turn += 1
        if self._looked is not None:
            self._compare(self._looked)

    def found(self) -> int | None:
        """The parameter, by index, in which something written was found since this was asked; None: none."""
        asked, self._asked = self._asked, []
        for it in asked:
            it.ticket.synchronize()
        return next((it.kept.index for it in asked if it.answer.item()), None)

    def _compare(self, kept: _Kept) -> bool:
        """Begins to; False: the parameter is another one now."""
        parameter = self._parameters[kept.index]
        place = parameter.data_ptr(), parameter.shape, parameter.device
        if place != (kept.address, kept.shape, kept.values.device):
            return False
        written = (_bits(_part(parameter, kept.part)) != _bits(kept.values)).any()
        answer = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=not written.is_cpu)
        ticket = self._stagings.of(parameter.device).out([answer], [written])
        self._asked.append(_Asked(kept, answer, ticket))
        return True


def _part(parameter: torch.Tensor, turn: int) -> torch.Tensor:
    """One of the parts that a parameter is cut into, along its longest dimension; they go round."""
    values = parameter.detach()
    if values.numel() <= PART_ELEMENTS:
        return values
    longest = max(range(values.dim()), key=lambda it: values.shape[it])
    size = values.shape[longest]
    width = -(-size // min(size, -(-values.numel() // PART_ELEMENTS)))
    start = turn % -(-size // width) * width
    return values.narrow(longest, start, min(width, size - start))


def _bits(values: torch.Tensor) -> torch.Tensor:
    """As whole numbers: a NaN is like a NaN."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.view(whole[values.element_size()])
