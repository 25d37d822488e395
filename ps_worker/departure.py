"""Which gradients of a step are there, which buckets may leave, and whether what has left still holds.

Legend: P = parameters of the table.

With overlap, a bucket leaves while backward is still running, so a gradient that changes afterwards would be
silently lost. The first step is therefore watched without overlap; overlap begins only if no gradient
changed between backward and `step()`, and every later step is checked again. Changes are seen by the identity
of `p.grad`, its version counter, and the first element of a rotating sample of parameters (an unscale_ on a
CPU, `p.grad.data` and numpy views change bytes and bump no counter).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ps_wire.errors import GradientChanged

SAMPLE = 64  # parameters whose first element is compared in a step; one of each of 5,000 costs 31 ms

REMEDY = "wrap the optimizer with overlap=False"


class Watch:
    """What the hooks saw in one step. `seen[i]` is (identity, version, first element or None)."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], names: Sequence[str]) -> None:
        self._parameters = parameters
        self._names = names
        self._stride = max(1, -(-len(parameters) // SAMPLE))
        self._turn = 0
        self.seen: dict[int, tuple[torch.Tensor, int, float | None]] = {}
        self.fired_twice = False

    def note(self, index: int) -> None:
        """A parameter's gradient is complete, as far as its hook knows."""
        gradient = self._parameters[index].grad
        assert gradient is not None
        if index in self.seen:
            self.fired_twice = True
        sampled = index % self._stride == self._turn and gradient.numel()
        first = float(gradient.detach().flatten()[0]) if sampled else None
        self.seen[index] = (gradient, gradient._version, first)

    def changed(self) -> str | None:
        """What happened to a gradient since its hook, or None."""
        for index, (gradient, version, first) in self.seen.items():
            now = self._parameters[index].grad
            if now is not gradient:
                return f"the gradient of {self._names[index]!r} was replaced or cleared after backward"
            if now._version != version:
                return f"the gradient of {self._names[index]!r} was changed in place after backward"
            if first is not None and not _same(float(now.detach().flatten()[0]), first):
                return f"the gradient of {self._names[index]!r} was changed after backward"
        return None

    def next_step(self) -> None:
        """Forgets the step; the next one samples other parameters."""
        self.seen.clear()
        self.fired_twice = False
        self._turn = (self._turn + 1) % self._stride


def _same(now: float, before: float) -> bool:
    return now == before or (math.isnan(now) and math.isnan(before))


def changed_error(what: str) -> GradientChanged:
    """The error of a gradient that changed after its bucket had left."""
    return GradientChanged(
        f"{what}, after gradients had already left (communication overlaps backward): {REMEDY}"
    )
