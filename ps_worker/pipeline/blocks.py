"""The blocks of a model, which stages are made of: where it may be cut, and what crosses there.

Elements of a `ModuleList` or an `nn.Sequential` are blocks. So is another module that the forward calls, if
one tensor alone passes on from it; if more do, it is in one block with the module after it. What stands
between two blocks (additions, reshapes, masks) belongs to the first of them.

It must not know how stages run, nor what a block costs.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn

from ps_wire.errors import PipelineError
from ps_worker.pipeline.tracing import LISTS, OPENED, Closed, Traced, Untraceable, described, trace

# Of tensors, what is no tensor.
_NUMBER_METHODS = {
    "size",
    "dim",
    "numel",
    "nelement",
    "ndimension",
    "stride",
    "element_size",
    "item",
    "tolist",
}
_TENSOR_ATTRIBUTES = {"T", "H", "mT", "mH", "real", "imag", "data", "grad"}
_IN_PLACE = {f"i{name.rstrip('_')}" for name in vars(operator)} & vars(operator).keys()
_NUMBER_MODULES = {operator.__name__, "_operator", math.__name__, builtins.__name__}


@dataclass(frozen=True, slots=True)
class _Cut:
    """A place in the forward.

    Attributes:
        place: the index of the first node behind it.
        crossing: values that are made before it and used behind it, in the order in which they are made.
    """

    place: int
    crossing: tuple[fx.Node, ...]


class Blocks:
    """A model as blocks in order of execution.

    Modules and parameters are the model's own. A parameter that the forward never uses is in no block.
    """

    def __init__(self, model: nn.Module, traced: Traced) -> None:
        """Of a model and its graph.

        Raises:
            PipelineError: something that is no tensor would cross where blocks meet; it is named.
        """
        self._model = model
        self._traced = traced
        self._flow = _Flow(model, traced.graph)
        cuts = self._flow.cuts()
        self._cuts = cuts
        self.names = tuple(self._flow.first_module(cut.place) for cut in cuts[:-1])

    def __len__(self) -> int:
        return len(self.names)

    def stage(self, begin: int, end: int) -> nn.Module:
        """Blocks [begin, end), with what stands before the first and after the last of all.

        It takes what crosses at `begin`, tensor by tensor, and gives what crosses at `end`: a tensor, or a
        tuple of them. The first takes the model's inputs, and the last gives what the model gives. Modules
        and parameters have the names that they have in the model. Each call makes another stage, of the same
        modules.
        """
        self._check(begin, end)
        graph = fx.Graph()
        first, last = self._cuts[begin], self._cuts[end]
        values: dict[fx.Node, fx.Node] = {node: graph.placeholder(node.name) for node in first.crossing}

        def value(node: fx.Node) -> fx.Node:
            if node not in values:
                assert node.op == "get_attr", f"{node} is not at hand"
                values[node] = graph.node_copy(node)
            return values[node]

        for node in self._flow.body[first.place : last.place]:
            values[node] = graph.node_copy(node, value)
        if end == len(self):
            graph.output(fx.node.map_arg(self._flow.output.args[0], value))
        else:
            sent = tuple(value(node) for node in last.crossing)
            graph.output(graph.call_function(sent_to, (self.names[end], *sent)))
        return self._module(graph)

    def parameter_names(self, begin: int, end: int) -> tuple[str, ...]:
        """Of the parameters of blocks [begin, end), as `model.named_parameters()` has them."""
        self._check(begin, end)
        used: set[int] = set()
        first, last = self._cuts[begin], self._cuts[end]
        for node in self._flow.body[first.place : last.place]:
            targets = [node, *(it for it in node.all_input_nodes if it.op == "get_attr")]
            for target in targets:
                used |= {id(it) for it in self._parameters(target)}
        if end == len(self):
            for it in self._flow.output.all_input_nodes:
                used |= {id(parameter) for parameter in self._parameters(it)}
        return tuple(name for name, parameter in self._model.named_parameters() if id(parameter) in used)

    def index(self, name: str) -> int:
        """The block with this name, or the first one inside of the module with this name.

        Raises:
            PipelineError: there is none, or it runs more than once.
        """
        found = [at for at, block in enumerate(self.names) if block == name or block.startswith(f"{name}.")]
        exact = [at for at in found if self.names[at] == name]
        if len(exact) > 1:
            times = f"{name!r} runs {len(exact)} times"
            raise PipelineError(f"{times}: name another module of the stage's first block", name=name)
        if not found:
            raise PipelineError(f"no block is named {name!r}; there are {', '.join(self.names)}", name=name)
        return (exact or found)[0]

    def _check(self, begin: int, end: int) -> None:
        if not 0 <= begin < end <= len(self):
            raise PipelineError(f"a stage of blocks [{begin}, {end}) does not exist: there are {len(self)}")

    def _parameters(self, node: fx.Node) -> Iterable[nn.Parameter]:
        if node.op == "call_module":
            return self._model.get_submodule(str(node.target)).parameters()
        value = self._attribute(node) if node.op == "get_attr" else None
        return [value] if isinstance(value, nn.Parameter) else []

    def _attribute(self, node: fx.Node) -> Any:
        path = str(node.target)
        if path in self._traced.constants:
            return self._traced.constants[path]
        owner, _, name = path.rpartition(".")
        return getattr(self._model.get_submodule(owner), name)

    def _module(self, graph: fx.Graph) -> nn.Module:
        """The graph as a module, whose buffers are kept in states where the model keeps them."""
        root = nn.Module()  # the model's face: constants become buffers of a stage, and never the model's
        for name, child in self._model.named_children():
            root.add_module(name, child)
        for node in graph.nodes:
            if node.op == "get_attr" and "." not in str(node.target):
                setattr(root, str(node.target), self._attribute(node))
        stage = fx.GraphModule(root, graph, class_name="Stage")
        stage.training = self._model.training
        saved = set(self._model.state_dict(keep_vars=True))
        for node in graph.nodes:
            if node.op == "get_attr" and str(node.target) not in saved:
                owner, _, name = str(node.target).rpartition(".")
                holder = stage.get_submodule(owner)
                if holder is not self._model.get_submodule(owner):
                    holder.register_buffer(name, self._attribute(node), persistent=False)
        return stage


def sent_to(block: str, *values: Any) -> Any:
    """The values that go on to the stage that begins with `block`: a tensor, or a tuple of them.

    Raises:
        PipelineError: one is no tensor.
    """
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise PipelineError(
                f"the model cannot be cut before {block}: a {type(value).__name__} would cross, and only "
                "tensors can",
                block=block,
            )
    return values[0] if len(values) == 1 else values


def blocks_of(model: nn.Module) -> Blocks:
    """The blocks of a model; nothing of it is run or changed.

    Raises:
        PipelineError: it cannot be cut; the module and the reason are named.
    """
    closed = Closed()
    while True:
        try:
            traced = trace(model, closed)
        except Untraceable as error:
            if error.module is model:
                raise PipelineError(
                    f"{type(model).__qualname__} cannot be cut into stages: its forward {error.reason}",
                    module=type(model).__qualname__,
                ) from error
            closed = Closed(closed.classes | {type(error.module)}, closed.names)
            continue
        wide = _Flow(model, traced.graph).wide()
        if not wide:
            return Blocks(model, traced)
        lists = frozenset(name for name in wide if isinstance(model.get_submodule(name), nn.Sequential))
        classes = frozenset(type(model.get_submodule(name)) for name in wide - lists)
        closed = Closed(closed.classes | classes, closed.names | lists)


class _Flow:
    """The values of a graph: where they are made, and what crosses between two calls of modules."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        self._model = model
        nodes = list(graph.nodes)
        self.output = nodes[-1]
        self.inputs = tuple(node for node in nodes if node.op == "placeholder")
        self.body = [node for node in nodes if node.op not in {"placeholder", "get_attr", "output"}]
        self._at = dict.fromkeys(self.inputs, -1) | {node: index for index, node in enumerate(self.body)}
        self._calls = [index for index, node in enumerate(self.body) if node.op == "call_module"]
        self._last_use = {
            node: max((self._at.get(user, len(self.body)) for user in node.users), default=-1)
            for node in self._at
        }
        self._numbers = self._found_numbers()

    def cuts(self) -> list[_Cut]:
        """Where blocks meet, with the model's begin and end."""
        if not self._calls:
            raise PipelineError(
                f"{type(self._model).__qualname__} cannot be cut into stages: its forward calls no module"
            )
        cuts = [_Cut(0, self.inputs)]
        for before, behind in pairwise(self._calls):
            cut = self._narrowest(before, behind)
            if self._is_element(before) or self._is_element(behind):
                if cut is None:
                    self._refuse(before, behind)
                elif not self._overwritten(cut):
                    cuts.append(cut)
            elif cut is not None and len(cut.crossing) == 1 and not self._overwritten(cut):
                cuts.append(cut)
        return [*cuts, _Cut(len(self.body), ())]

    def first_module(self, place: int) -> str:
        """The name of the first module that is called at a place, or behind it."""
        return next(str(node.target) for node in self.body[place:] if node.op == "call_module")

    def wide(self) -> frozenset[str]:
        """Opened elements of lists in which more passes from module to module than before and behind them.

        These are blocks with a way around their inner modules, where no cut should be.
        """
        inside: dict[str, list[int]] = {}
        for index in self._calls:
            for name in self.body[index].meta[OPENED]:
                inside.setdefault(name, []).append(index)
        return frozenset(
            name
            for name, calls in inside.items()
            if self._is_in_list(name) and self._width_inside(calls) > self._width_around(calls)
        )

    def _width_inside(self, calls: Sequence[int]) -> int:
        return max((self._width(before, behind) for before, behind in pairwise(calls)), default=0)

    def _width_around(self, calls: Sequence[int]) -> int:
        at = self._calls.index(calls[0])
        before = self._width(self._calls[at - 1], calls[0]) if at else len(self.inputs)
        at = self._calls.index(calls[-1])
        behind = self._width(calls[-1], self._calls[at + 1]) if at + 1 < len(self._calls) else 1
        return max(before, behind)

    def _width(self, before: int, behind: int) -> int:
        return min(len(self._crossing(place)) for place in range(before + 1, behind + 1))

    def _crossing(self, place: int) -> tuple[fx.Node, ...]:
        return tuple(node for node, at in self._at.items() if at < place <= self._last_use[node])

    def _narrowest(self, before: int, behind: int) -> _Cut | None:
        """Between two calls the place where least crosses, the latest of them, if only tensors do."""
        best: _Cut | None = None
        for place in range(before + 1, behind + 1):
            crossing = self._crossing(place)
            possible = crossing and not any(self._is_no_tensor(node) for node in crossing)
            if possible and (best is None or len(crossing) <= len(best.crossing)):
                best = _Cut(place, crossing)
        return best

    def _refuse(self, before: int, behind: int) -> None:
        here, there = self.body[before], self.body[behind]
        crossing = self._crossing(behind)
        number = next((node for node in crossing if self._is_no_tensor(node)), None)
        what = (
            "nothing passes there"
            if number is None
            else f"`{described(number)}` would cross, which is no tensor"
        )
        raise PipelineError(
            f"{type(self._model).__qualname__} cannot be cut between {here.target} and {there.target}: "
            f"{what}; what a block needs it can take from the tensors that it is given, as x.shape[1]",
            module=str(there.target),
        )

    def _is_element(self, index: int) -> bool:
        return self._is_in_list(str(self.body[index].target))

    def _is_in_list(self, name: str) -> bool:
        return isinstance(self._model.get_submodule(name.rpartition(".")[0]), LISTS)

    def _is_no_tensor(self, node: fx.Node) -> bool:
        """Whether a value is known to be none: a number, or a tuple of which an element is taken."""
        return node in self._numbers or any(
            user.op == "call_function" and user.target is operator.getitem and isinstance(user.args[1], int)
            for user in node.users
            if user.args[0] is node
        )

    def _found_numbers(self) -> set[fx.Node]:
        numbers: set[fx.Node] = set()
        for node in self.body:
            if node.op == "call_method":
                number = node.target in _NUMBER_METHODS
            elif node.op == "call_function" and node.target is getattr:
                number = node.args[1] not in _TENSOR_ATTRIBUTES
            else:
                of = getattr(node.target, "__module__", None) if node.op == "call_function" else None
                number = of in _NUMBER_MODULES and all(it in numbers for it in node.all_input_nodes)
            if number:
                numbers.add(node)
        return numbers

    def _overwritten(self, cut: _Cut) -> bool:
        """Whether what crosses is written into behind the cut: what a stage was given is not its own."""
        return any(
            self._at.get(user, -1) >= cut.place and self._writes(user, node)
            for node in cut.crossing
            for user in node.users
        )

    def _writes(self, user: fx.Node, node: fx.Node) -> bool:
        if not user.args or user.args[0] is not node:
            return False
        if user.op == "call_module":
            return bool(getattr(self._model.get_submodule(str(user.target)), "inplace", False))
        name = user.target if user.op == "call_method" else getattr(user.target, "__name__", "")
        text = str(name)
        in_place = text.endswith("_") and not text.endswith("__")
        return in_place or (user.op == "call_function" and text in _IN_PLACE)
