"""Optimizers as data: what a torch optimizer says of itself, and choices for those who have none.

A worker never runs the update: it sends the class's name and the numbers in `param_groups`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from ps_wire.errors import OptimizerUnsupported, UsageError
from ps_wire.spec.table import Group, Hyperparameters, OptimizerSpec, Value

# How an update is executed is the server's affair: these choose kernels, not results.
EXECUTION = frozenset({"foreach", "fused", "capturable", "differentiable"})


@dataclass(frozen=True, slots=True)
class OptimizerChoice:
    """An optimizer of `torch.optim` by name, for tables without one: `ps.SGD(lr=1.0)`."""

    name: str
    hyperparameters: Group

    def spec(self) -> OptimizerSpec:
        """As a table needs it: one param-group."""
        return OptimizerSpec(name=self.name, hyperparameters=Hyperparameters((self.hyperparameters,)))


def _choose(name: str, given: Mapping[str, Any]) -> OptimizerChoice:
    optimizer = getattr(torch.optim, name)([torch.zeros(1)], **given)
    return OptimizerChoice(name, read_groups(optimizer.defaults, optimizer.param_groups).groups[0])


def SGD(lr: float = 1e-3, **hyper: Any) -> OptimizerChoice:  # noqa: N802 - torch's names
    """As `torch.optim.SGD`."""
    return _choose("SGD", {"lr": lr, **hyper})


def Adam(lr: float = 1e-3, **hyper: Any) -> OptimizerChoice:  # noqa: N802
    """As `torch.optim.Adam`."""
    return _choose("Adam", {"lr": lr, **hyper})


def AdamW(lr: float = 1e-3, **hyper: Any) -> OptimizerChoice:  # noqa: N802
    """As `torch.optim.AdamW`."""
    return _choose("AdamW", {"lr": lr, **hyper})


def Adagrad(lr: float = 1e-2, **hyper: Any) -> OptimizerChoice:  # noqa: N802
    """As `torch.optim.Adagrad`."""
    return _choose("Adagrad", {"lr": lr, **hyper})


def RMSprop(lr: float = 1e-2, **hyper: Any) -> OptimizerChoice:  # noqa: N802
    """As `torch.optim.RMSprop`."""
    return _choose("RMSprop", {"lr": lr, **hyper})


def Adadelta(lr: float = 1.0, **hyper: Any) -> OptimizerChoice:  # noqa: N802
    """As `torch.optim.Adadelta`."""
    return _choose("Adadelta", {"lr": lr, **hyper})


def Adamax(lr: float = 2e-3, **hyper: Any) -> OptimizerChoice:  # noqa: N802
    """As `torch.optim.Adamax`."""
    return _choose("Adamax", {"lr": lr, **hyper})


def NAdam(lr: float = 2e-3, **hyper: Any) -> OptimizerChoice:  # noqa: N802
    """As `torch.optim.NAdam`."""
    return _choose("NAdam", {"lr": lr, **hyper})


def RAdam(lr: float = 1e-3, **hyper: Any) -> OptimizerChoice:  # noqa: N802
    """As `torch.optim.RAdam`."""
    return _choose("RAdam", {"lr": lr, **hyper})


def ASGD(lr: float = 1e-2, **hyper: Any) -> OptimizerChoice:  # noqa: N802
    """As `torch.optim.ASGD`."""
    return _choose("ASGD", {"lr": lr, **hyper})


def Rprop(lr: float = 1e-2, **hyper: Any) -> OptimizerChoice:  # noqa: N802
    """As `torch.optim.Rprop`."""
    return _choose("Rprop", {"lr": lr, **hyper})


def spec_of(
    optimizer: torch.optim.Optimizer, groups: Iterable[Mapping[str, Any]] | None = None
) -> OptimizerSpec:
    """A torch optimizer as data.

    Args:
        optimizer: of torch.optim.
        groups: those of its param-groups that the table has; default: all.

    Raises:
        OptimizerUnsupported: it is not one of `torch.optim` itself, but a subclass or somebody else's:
            its update is code, and code is not sent. Or it has a hyper-parameter that cannot be sent.
    """
    cls = type(optimizer)
    if getattr(torch.optim, cls.__name__, None) is not cls:
        raise OptimizerUnsupported(
            f"{cls.__module__}.{cls.__qualname__} is not an optimizer of torch.optim: its update is code, "
            "and servers run no code of a worker. Use one of torch.optim; wrap before a framework does.",
            optimizer=cls.__qualname__,
        )
    try:
        return OptimizerSpec(
            name=cls.__name__,
            hyperparameters=read_groups(
                optimizer.defaults, optimizer.param_groups if groups is None else groups
            ),
        )
    except UsageError as error:
        raise OptimizerUnsupported(f"{cls.__name__}: {error.message}", optimizer=cls.__name__) from None


def check_norm(clip_grad_norm: object) -> None:
    """Refuses what is no norm to clip a gradient to; None is none.

    Raises:
        UsageError: it is not a number, or not one that is finite and > 0.
    """
    if clip_grad_norm is None:
        return
    if not (isinstance(clip_grad_norm, Real) and 0.0 < float(clip_grad_norm) < float("inf")):
        raise UsageError(f"clip_grad_norm must be a number, finite and > 0, got {clip_grad_norm!r}")


def sizes_of(groups: Iterable[Mapping[str, Any]]) -> list[int]:
    """How many parameters each param-group has."""
    return [len(group["params"]) for group in groups]


def check_sizes(before: list[int], groups: Iterable[Mapping[str, Any]]) -> None:
    """Refuses param-groups that were changed by hand.

    Raises:
        UsageError: they had other numbers of parameters `before`.
    """
    now = sizes_of(groups)
    if now != before:
        raise UsageError(
            f"param_groups had {before} parameters, and {now} now: what is in no table is not trained; "
            "call add_param_group, and freeze what is to rest (requires_grad=False)"
        )


def read_groups(defaults: Mapping[str, Any], groups: Iterable[Mapping[str, Any]]) -> Hyperparameters:
    """Reads param-groups as they are now, but for parameters, execution choices and keys of schedulers.

    Args:
        defaults: of the optimizer: its hyper-parameters by name.
        groups: some of its `param_groups`.

    Raises:
        UsageError: a value is neither a number, a flag, a text nor a few numbers.
    """
    names = sorted(defaults.keys() - EXECUTION)
    try:
        return Hyperparameters(
            tuple(
                tuple((name, _value(name, group[name], defaults[name])) for name in names) for group in groups
            )
        )
    except KeyError as error:
        raise UsageError(f"a param-group has no {error}: give it one, as the others have") from None


def _value(name: str, value: object, default: object) -> Value:
    if isinstance(value, bool) and type(default) in (int, float):
        return float(value)
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Real):  # numpy's
        return float(value)
    if isinstance(value, Sequence) and all(isinstance(item, Real | torch.Tensor) for item in value):
        return tuple(float(item) for item in value)
    raise UsageError(
        f"hyper-parameter {name} is {value!r}: numbers, flags, texts and tuples of numbers travel"
    )
