"""Hooks that a model has while the weights of its next step arrive, and no longer.

    before a module's forward   `enter`, with the parameters that this module has to wait for
    before state_dict()         `settle`; and so before a module is copied or pickled

Which parameters a module has to wait for is seen in one step, in which modules are only watched: its own, and
those of modules below that are not called (as `out_proj` in torch's attention), with no called one between.
In eval mode a module waits for all below it: torch's fast paths read what training never does. A module that
runs inside a compiled graph is not called from Python, so it is one of these, and no hook gets into a graph.

It must not know what is waited for, nor how.

Cost: torch takes 5 us to register a hook and to remove it, so hooks are put into its dicts, 1 us.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeAlias

import torch
from torch._compile import _disable_dynamo
from torch.compiler import is_compiling

Parameters: TypeAlias = frozenset[int]  # by id


class ModuleHooks:
    """The hooks of one model: who waits for which parameters before its forward.

    Attributes:
        covered: ids of the parameters that some module waits for; empty before modules were watched.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        enter: Callable[[Parameters], object],
        settle: Callable[[], object],
    ) -> None:
        """Touches nothing yet.

        Args:
            model: with all modules.
            enter: waits for parameters; called once a step for each module that has some.
            settle: waits for all; hooks must be off when it returns.
        """
        self._model = model
        self._enter = enter
        self._settle = settle
        self._number = torch.utils.hooks.RemovableHandle(
            OrderedDict()
        ).id  # of our hooks; torch gives it to nobody else
        self._modules: list[torch.nn.Module] = []
        self._hooked: list[torch.nn.Module] = []
        self._watching = False
        self._called: set[torch.nn.Module] = set()
        self._waits: dict[torch.nn.Module, Parameters] = {}
        self.covered: Parameters = frozenset()

    @property
    def watching(self) -> bool:
        """Whether modules are watched."""
        return self._watching

    def watch(self) -> None:
        """Notes from now on whose forward is called, until `plan` or `take_off`."""
        self.take_off()
        self._called.clear()
        self._watching = True
        self._hooked = list(self._model.modules())  # first: whatever Ctrl-C leaves is taken off
        for module in self._hooked:
            self._put_on(module, self._note)
            self._before_copies(module)

    def plan(self, parameters: Collection[torch.Tensor]) -> None:
        """Of what was seen since `watch`: makes out which module waits for which of these parameters."""
        self.take_off()
        self._modules = list(self._model.modules())
        known = frozenset(map(id, parameters))
        self._waits = {
            module: waits
            for module in self._modules
            if module in self._called and (waits := known & self._read_by(module))
        }
        self.covered = frozenset().union(*self._waits.values())
        self._called.clear()

    def put_on(self) -> None:
        """From now on each module that has something to wait for waits."""
        self._hooked = self._modules
        for module in self._waits:
            self._put_on(module, self._wait)
        for module in self._modules:
            module._state_dict_pre_hooks[self._number] = self._before_state_dict
            self._before_copies(module)

    def take_off(self) -> None:
        """Nothing is left of any hook. May be called again."""
        self._watching = False
        for module in self._hooked:
            module._forward_pre_hooks.pop(self._number, None)
            module._state_dict_pre_hooks.pop(self._number, None)
            module.__dict__.pop("__reduce_ex__", None)
        self._hooked = []

    def _put_on(self, module: torch.nn.Module, hook: Callable[[torch.nn.Module], object]) -> None:
        def before_forward(module: torch.nn.Module, _: Any) -> None:
            if not is_compiling():
                hook(module)

        # Dynamo calls that of a compiled module itself, and is not to compile it; that of one within it
        # traces, so it cannot be disabled: nothing of it gets into the graph. Before dynamo is imported its
        # stand-in remembers the code (`ps_wire.process.late_dynamo`); else step() has imported it.
        torch._dynamo.eval_frame.skip_code(before_forward.__code__)
        hooks: Any = module._forward_pre_hooks  # torch says dict
        hooks[self._number] = before_forward
        # Others may read weights, so they come behind: in the OrderedDict, by which torch runs them, and in
        # the plain dict below it, by which dynamo of torch 2.11 names them, and which `move_to_end` leaves as
        # it is. No bytecode runs between the halves of a move: no Ctrl-C can lose a hook of the script's.
        others = [it for it in hooks if it != self._number]
        if others:
            hooks.update(zip(others, map(hooks.pop, others), strict=True))

    @_disable_dynamo
    def _note(self, module: torch.nn.Module) -> None:
        self._called.add(module)

    @_disable_dynamo
    def _wait(self, module: torch.nn.Module) -> None:
        waits = self._waits[module] if module.training else frozenset(map(id, module.parameters()))
        self._enter(waits)
        module._forward_pre_hooks.pop(self._number, None)

    def _before_state_dict(self, *_: Any) -> None:
        self._settle()

    def _before_copies(self, module: torch.nn.Module) -> None:
        """Copies and pickles of a module are of whole weights, and without hooks."""
        module.__dict__["__reduce_ex__"] = partial(self._reduce, module)

    def _reduce(self, module: torch.nn.Module, protocol: Any) -> Any:
        self._settle()
        self.take_off()
        return module.__reduce_ex__(protocol)

    def _read_by(self, module: torch.nn.Module) -> set[int]:
        """Ids of a module's parameters, and of those below that are not called, down to the next called."""
        found = set(map(id, module._parameters.values()))
        left = list(module.children())
        while left:
            below = left.pop()
            if below not in self._called:
                found.update(map(id, below._parameters.values()))
                left += below.children()
        return found
