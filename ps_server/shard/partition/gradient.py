"""A gradient: what a push brings for one partition.

Legend: E = elements of the partition, P = parameter pieces in it, R = ranks of the worker that pushed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ps_server.shard.partition.inputs import Contribution
from ps_wire.errors import HyperparametersDiffer
from ps_wire.process.rank_mean import rank_mean
from ps_wire.spec.table import Hyperparameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The payload of a contribution.

    Attributes:
        terms: R tensors of shape (E,), in rank order, whose mean the gradient is; one where it came as it
            is: read-only memory of the received message, in 16 bits if it travelled so. Zeros where no piece
            is present.
        present: P flags: which pieces had a gradient. Pieces without one hold zeros.
        hyper: what its worker's `param_groups` said at that step.
        strict: whether the worker gets an error where its step takes other ones.
        borrowed: the terms lie in the worker's memory, which is its own again once they are applied.
        pulls: the worker knows by the weights of the next version that they are.
    """

    terms: tuple[torch.Tensor, ...]
    present: tuple[bool, ...]
    hyper: Hyperparameters
    strict: bool = False
    borrowed: bool = False
    pulls: bool = False

    @property
    def values(self) -> torch.Tensor:
        """The gradient, shape (E,); where it is a mean, taken now, in memory of its own."""
        if len(self.terms) == 1:
            return self.terms[0]
        return rank_mean(self.terms, torch.empty_like(self.terms[0]))

    @property
    def dtype(self) -> torch.dtype:
        """In which it travelled."""
        return self.terms[0].dtype

    @property
    def nbytes(self) -> int:
        """Of the gradient."""
        return self.terms[0].nbytes


def gradient_of(contribution: Contribution) -> Gradient:
    """The gradient of a contribution that does not abstain."""
    assert isinstance(contribution.payload, Gradient)
    return contribution.payload


def owned(contribution: Contribution) -> Contribution:
    """The contribution, with values in memory of ours."""
    if contribution.abstains or not (gradient := gradient_of(contribution)).borrowed:
        return contribution
    values = gradient.values.clone() if len(gradient.terms) == 1 else gradient.values
    return replace(contribution, payload=replace(gradient, terms=(values,), borrowed=False))


def terms_of(gradients: Sequence[Gradient]) -> tuple[list[torch.Tensor], int]:
    """All terms one behind the other, and how many of them are the mean of one gradient.

    The mean of one gradient's terms is that gradient, so each counts as one then. Where workers have
    different numbers of ranks, gradients take the place of their terms.
    """
    if len(gradients) == 1:
        return list(gradients[0].terms), 1
    numbers = {len(gradient.terms) for gradient in gradients}
    if len(numbers) > 1:
        return [gradient.values for gradient in gradients], 1
    return [term for gradient in gradients for term in gradient.terms], numbers.pop()


def differ(step: int, taken: int) -> HyperparametersDiffer:
    """The error of a strict worker where the step took the hyper-parameters of worker `taken`."""
    return HyperparametersDiffer(
        f"step {step} took the param_groups of worker {taken}, and this worker's differ: "
        "change them at the same steps on all workers, or wrap without strict_hyperparameters",
        step=step,
        worker=taken,
    )
