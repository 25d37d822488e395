"""Changes of gradients that must not change any more: comparisons, and the texts of errors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ps_wire.errors import UsageError


@dataclass(frozen=True, slots=True)
class Sample:
    """The gradients of a bucket of which a row is compared in this step; other steps compare others.

    Attributes:
        every: of those that are there, by index.
        turn: chooses the row.
    """

    every: slice
    turn: int

    def row(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The row of one that is compared, a view; None: it has none."""
        if not tensor.dim():
            return tensor
        return tensor[self.turn % tensor.shape[0]] if tensor.numel() else None


def cleared(name: str) -> UsageError:
    """The error of a hook of the script that took a gradient away."""
    return UsageError(
        f"a hook cleared the gradient of {name!r} while backward was running (as an optimizer in backward "
        "does): the servers step all parameters at once, so keep gradients until step()"
    )


def replaced(name: str) -> str:
    """The text about a gradient that is another tensor now."""
    return f"the gradient of {name!r} was replaced or cleared after backward"


def changed(name: str) -> str:
    """The text about a gradient whose values are others now."""
    return f"the gradient of {name!r} was changed after backward"


def same(gradient: torch.Tensor, sent: torch.Tensor) -> bool:
    """Whether a gradient has the values that were copied; a NaN is like a NaN."""
    now = gradient.to(sent)
    if torch.equal(now, sent):
        return True
    return bool(((now == sent) | (now.isnan() & sent.isnan())).all())
