"""Ways to take one optimizer step on a partition, in the order in which they are tried.

Each makes, to the bit, the weights and states that torch's optimizer in place makes. Whether a way fits
hyper-parameters is looked at once for a param-group, as long as it stays the same. What fits may still pass a
step on, such as one in which a piece has no gradient. The last one fits always and takes every step.

Legend: E = elements of the partition, P = parameter pieces in it.

It must not know steps, workers or frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from ps_server.shard.optimizer.adam import Adam, across
from ps_server.shard.optimizer.bound_optimizer import BoundOptimizer
from ps_wire.process import kernels, trace
from ps_wire.spec.table import Group

Fit = TypeVar("Fit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepper(Generic[Fit]):
    """One way to take a step.

    Attributes:
        name: for people.
        fits: what of these hyper-parameters the way needs; None: it is not for them.
        run: takes the step, with what fits, the mean gradient of shape (E,), or None where it has been used
            already, and P flags: which pieces have a gradient. False: nothing is done.
    """

    name: str
    fits: Callable[[BoundOptimizer, Group], Fit | None]
    run: Callable[[BoundOptimizer, Fit, torch.Tensor | None, Sequence[bool]], bool]


def plain_rate(bound: BoundOptimizer, group: Group) -> float | None:
    """The learning rate where a step is `piece - rate * gradient` and no more."""
    optimizer, values = bound.optimizer, dict(group)
    if optimizer.name != "SGD" or not optimizer.on_weights:
        return None
    rate = values["lr"]
    if not isinstance(rate, float) or any(
        values.get(key) for key in ("momentum", "weight_decay", "nesterov", "maximize")
    ):
        return None
    wide = all(piece.dtype in (torch.float32, torch.float64) for piece in optimizer.pieces)
    return rate if wide else None


def step_ahead(bound: BoundOptimizer, rate: float, terms: Sequence[torch.Tensor], ranks: int) -> bool:
    """Writes what a plain step with the mean of gradients comes to into the other half, in one pass over all.

    Weights in one memory have none: memory for each version would hold them twice.

    Args:
        bound: whose weights are to have that version next.
        rate: as `PLAIN` fits.
        terms: of shape (E,) each, in rank order, a value in each piece.
        ranks: how many of them, one behind the other, are the mean of one gradient.

    Returns:
        Whether all of it is finite, and the step only has to be turned to; else it is to be taken otherwise.
    """
    weights, built = bound.weights, kernels.KERNELS
    if built is None or weights.other is None or not kernels.fit([*terms, weights.now]):
        return False
    with trace.span("mean and step"):
        whole = built.mean_step(terms, weights.now, rate, weights.other, ranks)
    return weights.wrote_ahead(whole)


def step_along(bound: BoundOptimizer, rate: float, gradient: torch.Tensor, copy: torch.Tensor) -> bool:
    """Writes what a plain step comes to where the next version may be, and a copy, in one pass over all.

    Args:
        bound: whose weights are to have that version next.
        rate: as `PLAIN` fits.
        gradient: shape (E,), a value in each piece.
        copy: where the copy goes, shape (E,).

    Returns:
        Whether all of it is finite, and the step only has to be turned to; else the copy is of the weights as
        they are, or was not touched.
    """
    weights, built = bound.weights, kernels.KERNELS
    if built is None or not kernels.fit([gradient, weights.now, copy]):
        return False
    with trace.span("step and copy weights"):
        whole = built.step_copy(gradient, weights.now, rate, weights.room(), copy)
    if not whole:
        copy.copy_(weights.now)
    return weights.wrote_ahead(whole)


def _plain(bound: BoundOptimizer, rate: float, average: torch.Tensor | None, flags: Sequence[bool]) -> bool:
    weights = bound.weights
    if weights.ahead:
        weights.next()
        return True
    assert average is not None
    if not all(flags):
        return False
    before = weights.now
    torch.add(before, average, alpha=-rate, out=weights.next())
    if weights.other is None and weights.now is not before:
        bound.rebind()
    return True


def _crossing(bound: BoundOptimizer, group: Group) -> tuple[Adam, Group] | None:
    optimizer = bound.optimizer
    if bound.weights.other is None or not optimizer.on_weights:
        return None
    adam = across(optimizer.name, group, optimizer.pieces)
    return None if adam is None else (adam, group)


def _across(
    bound: BoundOptimizer, fit: tuple[Adam, Group], average: torch.Tensor | None, flags: Sequence[bool]
) -> bool:
    """Pieces without a state get their first from torch, which goes on in this half then."""
    assert average is not None
    adam, group = fit
    weights, optimizer = bound.weights, bound.optimizer
    before = weights.now
    of_parts = bound.flags(flags)
    left = adam.step_pieces(optimizer.states(), bound.places, of_parts, average, before, weights.next())
    if any(left):
        bound.rebind()
        optimizer.step(bound.given(average, left), group)
    return True


def _always(_bound: BoundOptimizer, group: Group) -> Group:
    return group


def _in_place(
    bound: BoundOptimizer, group: Group, average: torch.Tensor | None, flags: Sequence[bool]
) -> bool:
    assert average is not None
    weights = bound.weights
    if weights.other is None:
        weights.make_writable()
    else:
        weights.carry()
    if bound.elsewhere:
        bound.rebind()
    bound.optimizer.step(bound.given(average, bound.flags(flags)), group)
    return True


PLAIN = Stepper(name="plain SGD out of place", fits=plain_rate, run=_plain)
ACROSS = Stepper(name="Adam from one half into the other", fits=_crossing, run=_across)
IN_PLACE = Stepper(name="torch in place", fits=_always, run=_in_place)

STEPPERS: tuple[Stepper[Any], ...] = (PLAIN, ACROSS, IN_PLACE)


def fitting(bound: BoundOptimizer, group: Group) -> list[tuple[Stepper[Any], Any]]:
    """The ways that fit these hyper-parameters, each with what it needs of them."""
    found = [(stepper, stepper.fits(bound, group)) for stepper in STEPPERS]
    return [(stepper, fit) for stepper, fit in found if fit is not None]
