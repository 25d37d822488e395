"""A gradient: what a push brings for one partition.

Legend: E = elements of the partition, P = parameter pieces in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ps_server.shard.partition.inputs import Contribution
from ps_wire.errors import HyperparametersDiffer
from ps_wire.spec.table import Hyperparameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The payload of a contribution.

    Attributes:
        values: shape (E,); read-only memory of the received message, in 16 bits if it travelled so. Zeros
            where no piece is present.
        present: P flags: which pieces had a gradient. Pieces without one hold zeros.
        hyper: what its worker's `param_groups` said at that step.
        strict: whether the worker gets an error where its step takes other ones.
        borrowed: the values lie in the worker's memory, which is its own again once they are applied.
        pulls: the worker knows by the weights of the next version that they are.
    """

    values: torch.Tensor
    present: tuple[bool, ...]
    hyper: Hyperparameters
    strict: bool = False
    borrowed: bool = False
    pulls: bool = False


def gradient_of(contribution: Contribution) -> Gradient:
    """The gradient of a contribution that does not abstain."""
    assert isinstance(contribution.payload, Gradient)
    return contribution.payload


def owned(contribution: Contribution) -> Contribution:
    """The contribution, with values in memory of ours."""
    if contribution.abstains or not (gradient := gradient_of(contribution)).borrowed:
        return contribution
    return replace(contribution, payload=replace(gradient, values=gradient.values.clone(), borrowed=False))


def differ(step: int, taken: int) -> HyperparametersDiffer:
    """The error of a strict worker where the step took the hyper-parameters of worker `taken`."""
    return HyperparametersDiffer(
        f"step {step} took the param_groups of worker {taken}, and this worker's differ: "
        "change them at the same steps on all workers, or wrap without strict_hyperparameters",
        step=step,
        worker=taken,
    )
