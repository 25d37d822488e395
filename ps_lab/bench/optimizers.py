"""The optimizers that a bench can be asked for, without torch: the command line and estimates need them."""

from __future__ import annotations

from dataclasses import dataclass

from ps_wire.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOptimizer:
    """One of torch's.

    Attributes:
        cls: its name in `torch.optim`.
        slots: tensors of state, each of the weights' size.
        fused: torch has a fused CPU kernel for it.
    """

    cls: str
    slots: int
    fused: bool


OPTIMIZERS: dict[str, KnownOptimizer] = {
    "sgd": KnownOptimizer(cls="SGD", slots=0, fused=True),
    "adam": KnownOptimizer(cls="Adam", slots=2, fused=True),
    "adamw": KnownOptimizer(cls="AdamW", slots=2, fused=True),
    "adagrad": KnownOptimizer(cls="Adagrad", slots=1, fused=True),
    "rmsprop": KnownOptimizer(cls="RMSprop", slots=1, fused=False),
}


def check_optimizer(name: str) -> str:
    """The name, in lower case.

    Raises:
        UsageError: a bench knows none of that name; those that it knows are listed.
    """
    if name.lower() not in OPTIMIZERS:
        raise UsageError(f"--optimizer {name!r} is not known to the bench; there are {', '.join(OPTIMIZERS)}")
    return name.lower()
