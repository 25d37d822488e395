"""An optimizer whose state lives on the servers: `state_dict` reads it, `load_state_dict` sets it.

torch's own methods make and take the format, run the hooks and set `param_groups`; between them `self.state`
is filled for as long as they need it. The optimizer that was wrapped becomes a second name for this one.
It must not know how a step goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import torch

from ps_wire.errors import UsageError
from ps_worker.exchange.exchange import Exchange

States: TypeAlias = Sequence[Mapping[str, Any]]

HOOKS = tuple(
    f"_optimizer_{call}_{when}_hooks"
    for call in ("step", "state_dict", "load_state_dict")
    for when in ("pre", "post")
)
FORWARDED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


@dataclass(slots=True, kw_only=True)
class StartedTable:
    """A table of a model's parameters that has started.

    Attributes:
        number: of the table.
        exchange: with the job's weights.
        parameters: by name, in the order of the table.
        step: this worker's first.
        loads: how many times its optimizer's state was set by `load_state_dict`.
    """

    number: int
    exchange: Exchange
    parameters: Mapping[str, torch.nn.Parameter]
    step: int
    loads: int = field(default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAccess:
    """How the state of a table's optimizer is reached, in torch's format, one dict per parameter.

    Attributes:
        dump: table -> states.
        share: table, how many times now, states; all workers call it, the lowest one's are set.
    """

    dump: Callable[[int], States]
    share: Callable[[int, int, States], None]


class RemoteStateOptimizer(torch.optim.Optimizer):
    """See the module's docstring. A subclass adds its tables to `_started`; its `state` is always empty."""

    _access: StateAccess
    _started: list[StartedTable]
    _inner: torch.optim.Optimizer

    def _take_over(self, inner: torch.optim.Optimizer) -> None:
        """Makes calls of the optimizer that was wrapped calls of this one; its `step` is refused."""
        self._inner = inner
        for name in HOOKS:
            setattr(self, name, getattr(inner, name))
        inner.param_groups = self.param_groups
        for name in FORWARDED:
            setattr(inner, name, getattr(self, name))
        inner.step = _refuse_step  # type: ignore[method-assign]
        inner.__getstate__ = _refuse_copy  # type: ignore[method-assign]

    def __getstate__(self) -> NoReturn:
        """Refuses copies and pickles.

        Raises:
            UsageError: always.
        """
        _refuse_copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by torch's `load_state_dict`: param-groups of an older torch get what they lack."""
        super().__setstate__(state)
        self._inner.__setstate__({"state": defaultdict(dict), "param_groups": self.param_groups})

    def _between_steps(self, what: str) -> None:
        """Refuses where gradients of a step have left."""
        raise NotImplementedError(what)

    def state_dict(self) -> dict[str, Any]:
        """As torch has it; the state is read from the servers, on the CPU.

        Under BSP it is that of one step. Under SSP and ASP every partition is read as it is by then.

        Raises:
            GradientChanged: gradients of this step have already left.
            PsError: a server refuses, or cannot be reached.
        """
        self._between_steps("state_dict()")
        try:
            for started in self._started:
                states = self._access.dump(started.number)
                for parameter, state in zip(started.parameters.values(), states, strict=True):
                    if state:
                        self.state[parameter] = dict(state)
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, on the servers. All workers call it; worker 0's state is set, the others wait for it.

        Each worker takes the `param_groups` that it is given.

        Raises:
            GradientChanged: gradients of this step have already left.
            StartLimitExceeded: worker 0 did not call it in time.
            UsageError: a state has not its parameter's shape.
        """
        self._between_steps("load_state_dict()")
        prepared = state_dict

        def keep(_: torch.optim.Optimizer, given: dict[str, Any]) -> None:
            nonlocal prepared  # as the script's own hooks, which were called before, have left it
            prepared = given

        handle = self.register_load_state_dict_pre_hook(keep)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            self.state.clear()
        # Not torch's `state`: it is rounded to the dtype of its parameter, and servers hold float32 masters.
        numbers = [number for group in prepared["param_groups"] for number in group["params"]]
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        states = {
            parameter: prepared["state"].get(number, {})
            for number, parameter in zip(numbers, own, strict=True)
        }
        for started in self._started:
            started.loads += 1
            mine = [states[parameter] for parameter in started.parameters.values()]
            self._access.share(started.number, started.loads, mine)


def _refuse_step(*_: Any, **__: Any) -> NoReturn:
    raise UsageError("this optimizer was wrapped: call step() of what worker.wrap returned")


_refuse_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # schedulers then ask `_opt_called`


def _refuse_copy() -> NoReturn:
    raise UsageError(
        "a wrapped optimizer cannot be copied or pickled: its state is on servers, keep its state_dict(). "
        "A model whose step() was interrupted refers to it: call worker.synchronize() before saving the model"
    )
