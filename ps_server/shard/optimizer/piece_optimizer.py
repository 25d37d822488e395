"""Optimizers by name, applied to parameter pieces: torch's own, fused where torch has a fused CPU kernel.

A worker sends its optimizer as a class name and numbers, never as code. The table below is all that can be
named. An optimizer belongs here when its update is element-wise: a slice of a parameter is then updated as
the whole would be, bit for bit, so weights can be cut over shards.

It must not know partitions, gates or frames.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ps_wire.errors import OptimizerUnsupported, PayloadMismatch
from ps_wire.spec.table import Group, OptimizerSpec, Value

Gradients: TypeAlias = Sequence[torch.Tensor | None]
State: TypeAlias = Mapping[str, torch.Tensor]  # of one piece or parameter, by torch's names
WithGradient: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # a piece and its gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One optimizer that shards can run.

    Attributes:
        cls: its class in torch.
        fused: torch has a fused CPU kernel for it (six times faster than foreach on a CPU).
        tensors: names of the tensors of the size of the weights in its state, from its hyper-parameters;
            those without any are in every state.
        scalars: names of the numbers in its state, one for a whole parameter each.
    """

    cls: type[torch.optim.Optimizer]
    fused: bool
    tensors: Callable[[Mapping[str, Value]], tuple[str, ...]]
    scalars: tuple[str, ...] = ("step",)

    def slots(self, group: Mapping[str, Value]) -> int:
        """How many tensors of the size of the weights its state has."""
        return len(self.tensors(group))


def _sgd(group: Mapping[str, Value]) -> tuple[str, ...]:
    return ("momentum_buffer",) if group.get("momentum") else ()


def _adam(group: Mapping[str, Value]) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq") + ("max_exp_avg_sq",) * bool(group.get("amsgrad"))


def _rmsprop(group: Mapping[str, Value]) -> tuple[str, ...]:
    return (
        ("square_avg",)
        + ("momentum_buffer",) * bool(group.get("momentum"))
        + ("grad_avg",) * bool(group.get("centered"))
    )


KNOWN: dict[str, Known] = {
    "SGD": Known(cls=torch.optim.SGD, fused=True, tensors=_sgd, scalars=()),
    "Adam": Known(cls=torch.optim.Adam, fused=True, tensors=_adam),
    "AdamW": Known(cls=torch.optim.AdamW, fused=True, tensors=_adam),
    "Adagrad": Known(cls=torch.optim.Adagrad, fused=True, tensors=lambda _: ("sum",)),
    "RMSprop": Known(cls=torch.optim.RMSprop, fused=False, tensors=_rmsprop),
    "Adadelta": Known(cls=torch.optim.Adadelta, fused=False, tensors=lambda _: ("square_avg", "acc_delta")),
    "Adamax": Known(cls=torch.optim.Adamax, fused=False, tensors=lambda _: ("exp_avg", "exp_inf")),
    "NAdam": Known(
        cls=torch.optim.NAdam,
        fused=False,
        tensors=lambda _: ("exp_avg", "exp_avg_sq"),
        scalars=("step", "mu_product"),
    ),
    "RAdam": Known(cls=torch.optim.RAdam, fused=False, tensors=lambda _: ("exp_avg", "exp_avg_sq")),
    "ASGD": Known(
        cls=torch.optim.ASGD, fused=False, tensors=lambda _: ("ax",), scalars=("step", "eta", "mu")
    ),
    "Rprop": Known(cls=torch.optim.Rprop, fused=False, tensors=lambda _: ("prev", "step_size")),
}

REFUSED: dict[str, str] = {
    "LBFGS": "it evaluates the loss several times a step",
    "SparseAdam": "tables are dense",
    "Adafactor": "its update factors whole matrices, so it is not element-wise",
    "Muon": "its update orthogonalises whole matrices, so it is not element-wise",
    "LAMB": "its update scales by the norm of a whole parameter, so it is not element-wise",
    "LARS": "its update scales by the norm of a whole parameter, so it is not element-wise",
}


def known(name: str) -> Known:
    """The optimizer of that name.

    Raises:
        OptimizerUnsupported: shards cannot run it; the reason is named, and those that they can.
    """
    entry = KNOWN.get(name)
    if entry is None:
        reason = REFUSED.get(name, "it is not known to be element-wise")
        raise OptimizerUnsupported(
            f"optimizer {name!r}: {reason}; the servers run {', '.join(KNOWN)}", optimizer=name
        )
    return entry


def check(spec: OptimizerSpec) -> None:
    """Refuses an optimizer that shards cannot run, or hyper-parameters that torch refuses.

    Raises:
        OptimizerUnsupported: as said.
    """
    entry = known(spec.name)
    for group in spec.hyperparameters.groups:
        _make(entry, spec.name, [torch.zeros(1)], group)


def warm_up() -> None:
    """Makes torch import what its optimizers need, which the first job would wait for."""
    PieceOptimizer("SGD", (("lr", 0.1),), [torch.zeros(1)]).step([torch.zeros(1)], (("lr", 0.1),))


def state_slots(spec: OptimizerSpec, group: int) -> int:
    """Tensors of the size of the weights that the state of a param-group will have."""
    return known(spec.name).slots(dict(spec.hyperparameters.groups[group]))


class PieceOptimizer:
    """One of torch's optimizers over the pieces of one partition. Not thread-safe.

    Legend: P = pieces of the partition; each is a 1-D view of the partition's weights.

    Attributes:
        name: of the optimizer, in `KNOWN`.
        pieces: P of them.
        state_names: all that the state of a piece may hold, in torch's order.
        on_weights: the pieces are views of the partition's weights, so that others may step them, too.
    """

    on_weights = True

    def __init__(self, name: str, group: Group, pieces: Sequence[torch.Tensor]) -> None:
        """Makes the optimizer; its state grows with the first step, as in torch.

        Raises:
            OptimizerUnsupported: see `check`.
        """
        self.pieces = list(pieces)
        self.name = name
        self._start = self._group = group
        self.state_names = known(name).scalars + known(name).tensors(dict(group))
        self._torch = _make(known(name), name, self.pieces, group)

    def step(self, gradients: Gradients, group: Group) -> None:
        """One step with these hyper-parameters.

        Args:
            gradients: P of them; None skips the piece, as torch skips `grad is None`.
            group: as in the table, with other values.
        """
        if group is not self._group and group != self._group:
            for own in self._torch.param_groups:
                own.update(group)
            self._group = group
        pairs = zip(self.pieces, gradients, strict=True)
        there = [(piece, gradient) for piece, gradient in pairs if gradient is not None]
        for batch in self._batches(there):
            for piece, gradient in batch:
                piece.grad = gradient
            self._torch.step()
            for piece, _ in batch:
                piece.grad = None

    def _batches(self, there: list[WithGradient]) -> list[list[WithGradient]]:
        """Pieces that one step of torch takes: its fused SGD cannot have momentum for some of them only."""
        if self.name != "SGD":
            return [there]
        state = self._torch.state
        old = [item for item in there if state.get(item[0])]
        if not old or len(old) == len(there):
            return [there]
        return [old, [item for item in there if not state.get(item[0])]]

    def states(self) -> list[Mapping[str, torch.Tensor]]:
        """P states where they lie, as torch has them; empty where a piece never had a gradient."""
        return [self._torch.state.get(piece, {}) for piece in self.pieces]

    def rebind(self, pieces: Sequence[torch.Tensor]) -> None:
        """Goes on with P other pieces of memory that hold the same weights; state and gradients stay."""
        for own, piece in zip(self.pieces, pieces, strict=True):
            own.data = piece

    def export_state(self) -> list[State]:
        """P states, copied, as torch has them: tensors of the piece's size, scalars of no dimension.

        A piece that never had a gradient has an empty one.
        """
        return [{key: value.detach().clone() for key, value in state.items()} for state in self.states()]

    def import_state(self, states: Sequence[State]) -> None:
        """Sets P states, copied, in place of all that was there; the next step goes on from them.

        Args:
            states: as `export_state` gives them.

        Raises:
            PayloadMismatch: one is not a state that this optimizer can have; nothing was changed.
        """
        made: defaultdict[torch.Tensor, dict[str, Any]] = defaultdict(dict)
        for index, (piece, state) in enumerate(zip(self.pieces, states, strict=True)):
            self._check_state(index, state)
            if state:
                made[piece] = {key: self._own(key, state[key]) for key in self.state_names if key in state}
        self._torch.state = made  # in one go: an error on the way changes nothing

    def _check_state(self, index: int, state: State) -> None:
        entry = known(self.name)
        needed = entry.scalars + entry.tensors({})
        missing = [key for key in needed if key not in state]
        unknown = [key for key in state if key not in self.state_names]
        if unknown or (missing and (state or entry.cls is torch.optim.Adagrad)):
            raise PayloadMismatch(
                f"the state of {self.name} has {', '.join(self.state_names) or 'nothing'} with "
                f"{dict(self._start)}, got {', '.join(state) or 'nothing'} for piece {index}"
            )
        piece = self.pieces[index]
        for key, value in state.items():
            if key in entry.scalars:
                fits = value.dim() == 0 and value.dtype in (torch.float32, torch.float64)
            else:
                fits = value.shape == piece.shape and value.dtype == piece.dtype
            if not fits:
                raise PayloadMismatch(
                    f"{key} of piece {index} is {value.dtype} of shape {tuple(value.shape)}; the piece is "
                    f"{piece.dtype} of shape {tuple(piece.shape)}"
                )

    def _own(self, key: str, value: torch.Tensor) -> torch.Tensor:
        counts = key == "step" and known(self.name).fused  # fused kernels read it as float32
        return value.detach().to(torch.float32, copy=True) if counts else value.detach().clone()

    def state_bytes(self) -> int:
        """Bytes of state that the optimizer holds now."""
        return sum(
            value.numel() * value.element_size()
            for state in self._torch.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        )


def check_hyperparameters(name: str, start: tuple[Group, ...], now: tuple[Group, ...]) -> None:
    """Refuses hyper-parameters that are not those of the start with other values.

    Raises:
        PayloadMismatch: another number of groups, another name, a value of another kind, or one that needs
            more state than the optimizer was made with (amsgrad, centered, momentum).
    """
    slots = known(name).slots
    if len(start) != len(now):
        raise PayloadMismatch(f"{len(now)} param-groups; the table has {len(start)}")
    for index, (expected, got) in enumerate(zip(start, now, strict=True)):
        names = [key for key, _ in expected]
        if names != [key for key, _ in got]:
            raise PayloadMismatch(
                f"param-group {index} has hyper-parameters {[key for key, _ in got]}; the table has {names}"
            )
        for (key, old), (_, new) in zip(expected, got, strict=True):
            if _kind(old) != _kind(new):
                raise PayloadMismatch(f"{key} of param-group {index}: {new!r}; the table has {old!r}")
        if slots(dict(got)) > slots(dict(expected)):
            raise PayloadMismatch(
                f"param-group {index}: {dict(got)} needs more optimizer state than the table was made with: "
                "switch momentum, amsgrad or centered on before wrap"
            )


def _kind(value: Value) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return f"{len(value)} numbers" if isinstance(value, tuple) else type(value).__name__


def _make(entry: Known, name: str, pieces: Sequence[torch.Tensor], group: Group) -> torch.optim.Optimizer:
    accepted = inspect.signature(entry.cls).parameters
    keywords: dict[str, Any] = {key: value for key, value in group if key in accepted}
    on_host = all(piece.is_cpu for piece in pieces)
    fused = entry.fused and (on_host or name != "Adagrad")  # whose kernel is for CPUs
    keywords |= {"fused": True} if fused else {"foreach": not on_host}
    try:
        optimizer = entry.cls(list(pieces), **keywords)
    except Exception as error:  # noqa: BLE001 - torch looks at a peer's values as if they were its caller's
        raise OptimizerUnsupported(f"torch refuses {name} with {dict(group)}: {error}") from None
    unknown = [key for key, _ in group if key not in optimizer.param_groups[0]]
    if unknown:
        raise OptimizerUnsupported(f"{name} of this torch has no hyper-parameter {', '.join(unknown)}")
    for own in optimizer.param_groups:
        own.update(group)
    return optimizer
