"""An optimizer whose state lives on the servers: `state_dict` reads it, `load_state_dict` sets it.

torch's own methods make and take the format, run the hooks and set `param_groups`; between them `self.state`
is filled for as long as they need it. The optimizer that was wrapped becomes a second name for this one.
It must not know how a step goes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias

import torch

from ps_wire.errors import UsageError
from ps_worker.optimizer.started_table import StartedTable

States: TypeAlias = Sequence[Mapping[str, Any]]

HOOKS = tuple(
    f"_optimizer_{call}_{when}_hooks"
    for call in ("step", "state_dict", "load_state_dict")
    for when in ("pre", "post")
)
FORWARDED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


class StateAccess(Protocol):
    """The state of tables' optimizers on the servers, in torch's format, one dict per parameter."""

    def dump_state(self, table: int) -> States:
        """The states of a table."""

    def share_state(self, table: int, number: int, states: States) -> None:
        """Called by all workers, the `number`-th time for this table: the lowest one's states are set."""


class RemoteStateOptimizer(torch.optim.Optimizer):
    """An optimizer of torch's whose state is on the servers; here its `state` is empty between calls."""

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        access: StateAccess,
        tables: Callable[[], Iterable[StartedTable]],
    ) -> None:
        """Takes the param-groups of the optimizer that is wrapped, which stays as it is until `_take_over`.

        Args:
            inner: the script's own.
            access: to the state of its tables.
            tables: those that there are, when the state is asked for.
        """
        self._inner = inner
        self._access = access
        self._state_tables = tables
        self._loads: Counter[int] = Counter()  # by table, how many times its state was set
        super().__init__(inner.param_groups, inner.defaults)

    def _take_over(self) -> None:
        """Makes calls of the optimizer that was wrapped calls of this one; its `step` is refused."""
        inner = self._inner
        for name in HOOKS:
            setattr(self, name, getattr(inner, name))
        inner.param_groups = self.param_groups
        for name in FORWARDED:
            setattr(inner, name, getattr(self, name))
        inner.step = _refuse_step  # type: ignore[method-assign]
        inner.__getstate__ = refuse_copy  # type: ignore[method-assign]

    def _note_step(self) -> None:
        """A step is taken: a scheduler that was made before `wrap` asks the inner optimizer for that."""
        self._inner._opt_called = True  # type: ignore[attr-defined]

    def __getstate__(self) -> NoReturn:
        """Refuses copies and pickles.

        Raises:
            UsageError: always.
        """
        refuse_copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by torch's `load_state_dict`: param-groups of an older torch get what they lack."""
        super().__setstate__(state)
        self._inner.__setstate__({"state": defaultdict(dict), "param_groups": self.param_groups})

    def state_dict(self) -> dict[str, Any]:
        """As torch has it; the state is read from the servers, on the CPU.

        Raises:
            PsError: a server refuses, or cannot be reached.
        """
        try:
            for started in self._state_tables():
                states = self._access.dump_state(started.number)
                for parameter, state in zip(started.parameters.values(), states, strict=True):
                    if state:
                        self.state[parameter] = dict(state)
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, on the servers. All workers call it; worker 0's state is set, the others wait for it.

        Raises:
            StartLimitExceeded: worker 0 did not call it in time.
            UsageError: a state has not its parameter's shape.
        """
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
        for started in self._state_tables():
            self._loads[started.number] += 1
            mine = [states[parameter] for parameter in started.parameters.values()]
            self._access.share_state(started.number, self._loads[started.number], mine)


def _refuse_step(*_: Any, **__: Any) -> NoReturn:
    raise UsageError("this optimizer was wrapped: call step() of what worker.wrap returned")


_refuse_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # schedulers then ask `_opt_called`


def refuse_copy() -> NoReturn:
    """Refuses copies and pickles of a wrapped optimizer, and of what refers to one.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "a wrapped optimizer cannot be copied or pickled: its state is on servers, keep its state_dict(). "
        "A model whose step() was interrupted refers to it: call worker.synchronize() before saving the model"
    )
