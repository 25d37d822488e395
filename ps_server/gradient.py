"""What a push brings for one partition. Legend: E = elements of the partition, P = parameter pieces in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ps_wire.table import Hyperparameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The payload of a contribution.

    Attributes:
        values: shape (E,); read-only memory of the received message. All zeros where no piece is present.
        present: P flags: which pieces had a gradient. Pieces without one hold zeros.
        hyper: what its worker's `param_groups` said at that step.
        strict: whether the worker gets an error where its step takes other ones.
    """

    values: torch.Tensor
    present: tuple[bool, ...]
    hyper: Hyperparameters
    strict: bool = False
