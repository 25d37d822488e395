"""The forward of a model as a graph of calls: its blocks as they are, and what stands between them.

Modules that hold others in a `ModuleList` or an `nn.Sequential` are opened: their forward is part of the
graph. All others are calls, with their hooks, their dropout and their mode. A forward that decides by the
values of tensors, that differs between training and evaluation, that draws random numbers or keeps values on
its module has no such graph. Nothing is computed: models on `meta` have graphs, too.

It must not know stages.
"""

from __future__ import annotations

import dis
import inspect
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.fx.proxy import Proxy, TraceError

from ps_wire.errors import PipelineError

LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
CONSTANT = "_tensor_constant"  # how torch names a tensor that a forward makes of nothing
OPENED = "opened"  # in a node's meta: the opened modules whose forward has made it, the outermost first


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The graph of a model.

    Attributes:
        graph: torch's; its calls of modules name them from the model.
        constants: tensors that the forward makes of no input, by the names that the graph has for them.
    """

    graph: fx.Graph
    constants: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Closed:
    """Modules that are not opened though they hold others: their forward cannot be part of the graph.

    Attributes:
        classes: of modules whose forward has no graph, or is no place for cuts.
        names: of Sequentials that are no place for cuts.
    """

    classes: frozenset[type[nn.Module]] = frozenset()
    names: frozenset[str] = frozenset()


class Untraceable(Exception):
    """A forward that has no graph.

    Attributes:
        module: whose forward it is.
        reason: the end of a sentence that begins with its name.
    """

    def __init__(self, module: nn.Module, reason: str) -> None:
        super().__init__(reason)
        self.module = module
        self.reason = reason


def opens(module: nn.Module, name: str, closed: Closed) -> bool:
    """Whether the forward of this module of a model is part of the graph."""
    if name in closed.names or type(module) in closed.classes or _has_hooks(module):
        return False
    if type(module).forward is nn.Sequential.forward:
        return True
    if type(module) is nn.TransformerEncoder:
        return True
    if type(module).__module__.startswith("torch."):
        return False
    return any(isinstance(it, LISTS) and len(it) > 1 for it in module.modules())


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_pre_hooks or module._forward_hooks or module._backward_hooks)


def trace(model: nn.Module, closed: Closed) -> Traced:
    """The graph of a model, the same in training and in evaluation; one thread at a time.

    Raises:
        Untraceable: a module that was opened has no graph; its class may be closed, unless it is the model.
        PipelineError: the model has hooks, or takes its inputs in a way that stages cannot pass on.
    """
    if _has_hooks(model):
        raise PipelineError(
            f"{_class(model)} has hooks on the whole model, which no stage would call: register them on its "
            "modules"
        )
    with _TRACING:
        training = _trace(model, closed, training=True)
        evaluation = _trace(model, closed, training=False)
    for one, other in zip(training.graph.nodes, evaluation.graph.nodes, strict=False):
        if (one.op, one.target, str(one.args), str(one.kwargs)) != (
            *(other.op, other.target),
            *(str(other.args), str(other.kwargs)),
        ):
            opened = one.meta.get(OPENED) or other.meta.get(OPENED)
            raise Untraceable(
                model.get_submodule(opened[-1]) if opened else model,
                f"does something else in training than in evaluation (`{described(one)}`), and a stage would "
                "do the first for ever: put that into a module of its own, as nn.Dropout is for F.dropout",
            )
    return training


_TRACING = threading.Lock()  # torch replaces methods of nn.Module while it traces


def _trace(model: nn.Module, closed: Closed, *, training: bool) -> Traced:
    tracer = _Tracer(model, closed)
    with _mode(model, training=training), _unchanged(model) as before:
        graph = tracer.graph_of(model)
        constants = {
            name: value
            for name, value in vars(model).items()
            if name.startswith(CONSTANT) and name not in before and isinstance(value, torch.Tensor)
        }
    return Traced(graph=graph, constants=constants)


@contextmanager
def _mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = training
        yield
    finally:
        for module, was in modes:
            module.training = was


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Takes away what a forward has kept on modules, and complains of it."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    kept: list[tuple[nn.Module, str]] = []
    try:
        yield before[0][1]
    finally:
        for module, values in before:
            now = vars(module)
            for name in [it for it in now if it not in values or now[it] is not values[it]]:
                if name != "training" and not name.startswith(CONSTANT):
                    kept.append((module, name))
                del now[name]
            now.update(values)
    if kept:
        module, name = kept[0]
        raise Untraceable(
            module,
            f"keeps a value in self.{name}, which is lost where the forward is cut: return it, or keep it in "
            "a module of its own",
        )


class _Tracer(fx.Tracer):
    """torch's tracer: it opens modules as `opens` says, and leaves alone what other threads call."""

    def __init__(self, model: nn.Module, closed: Closed) -> None:
        super().__init__(param_shapes_constant=False)
        self.proxy_buffer_attributes = True
        self._model = model
        self._closed = closed
        self._opened: list[str] = []
        self._thread = threading.get_ident()

    def graph_of(self, model: nn.Module) -> fx.Graph:
        """Its graph.

        Raises:
            Untraceable: a forward has none.
        """
        try:
            graph: fx.Graph = self._watched(model, lambda: self.trace(model))
        except RecursionError as error:
            raise Untraceable(model, f"cannot be followed: {error}") from error
        return graph

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Inputs are what has no default: what has one is not passed from stage to stage, and keeps it."""
        assert is_module
        assert concrete_args is None
        inputs: list[Any] = []
        for parameter in list(inspect.signature(root_fn).parameters.values())[1:]:
            if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
                continue
            if parameter.default is not parameter.empty:
                if parameter.kind is parameter.POSITIONAL_ONLY:
                    break
                continue
            if parameter.kind is parameter.KEYWORD_ONLY:
                raise PipelineError(
                    f"{_class(self._model)} cannot be cut into stages: its forward wants {parameter.name} by "
                    "name, and stages take their inputs by position"
                )
            inputs.append(self.create_proxy("placeholder", parameter.name, (), {}))
        if not inputs:
            raise PipelineError(
                f"{_class(self._model)} cannot be cut into stages: its forward names no input, as x in "
                "forward(self, x)"
            )
        return root_fn, [self._model, *inputs]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether it is a call in the graph."""
        return not opens(m, module_qualified_name, self._closed)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A node, or what an opened forward gives."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        name = self.path_of_module(m)
        if self.is_leaf_module(m, name):
            return self.create_proxy("call_module", name, args, kwargs)
        self._opened.append(name)
        if type(m) is nn.TransformerEncoder:
            given = self._watched(m, lambda: _encoder(m, *args, **kwargs))
        else:
            given = self._watched(m, lambda: forward(*args, **kwargs))
        self._opened.pop()
        return given

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """A parameter or buffer as a node, for the thread that traces."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """A node that knows in whose forward it is."""
        node = super().create_node(*args, **kwargs)
        node.meta[OPENED] = tuple(self._opened)
        return node

    def to_bool(self, obj: Proxy) -> bool:
        """Assertions become part of the graph; all else that asks whether is refused."""
        frame = inspect.currentframe()
        asking = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
        if asking is not None and _asserts(asking):
            self.create_proxy("call_function", torch._assert, (obj, f"an assertion in {_place(asking)}"), {})
            return True
        return super().to_bool(obj)

    def _watched(self, module: nn.Module, run: Callable[[], Any]) -> Any:
        drawn = _random_state()
        try:
            given = run()
        except (Untraceable, PipelineError):
            raise
        except Exception as error:
            raise Untraceable(module, _reason(module, error)) from error
        if _random_state() != drawn:
            raise Untraceable(
                module,
                "draws random numbers to decide what it does, and a stage would have one outcome for ever: "
                "put that into a module of its own",
            )
        return given


def _encoder(
    module: nn.Module,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """The forward of torch's encoder, where it need not look at values: it knows its mask, has no padding."""
    if src_key_padding_mask is not None or (mask is not None and is_causal is None):
        raise NotImplementedError("it looks at its masks: give is_causal, and no src_key_padding_mask")
    for layer in module.get_submodule("layers").children():
        src = layer(src, src_mask=mask, is_causal=bool(is_causal), src_key_padding_mask=None)
    norm = getattr(module, "norm", None)
    return src if norm is None else norm(src)


def _asserts(frame: FrameType) -> bool:
    """Whether a frame is at an `assert`: what follows the question is to raise AssertionError."""
    following = [it for it in dis.get_instructions(frame.f_code) if it.offset > frame.f_lasti][:3]
    return any("ASSERTION_ERROR" in it.opname or it.argval is AssertionError for it in following)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_name}, line {frame.f_lineno}"


def _random_state() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), kind, keys.tobytes(), *rest  # type: ignore[union-attr]


def described(node: fx.Node) -> str:
    """A value as its line in the forward reads, in short."""
    if node.op == "call_function":
        if node.target is getattr:
            return f"{node.args[0]}.{node.args[1]}"
        return f"{getattr(node.target, '__name__', node.target)}({', '.join(map(str, node.args))})"
    if node.op == "call_method":
        return f"{node.args[0]}.{node.target}({', '.join(map(str, node.args[1:]))})"
    return str(node.target)


def _reason(module: nn.Module, error: Exception) -> str:
    """Why a forward has no graph, with the line on which it ended."""
    file = inspect.unwrap(type(module).forward).__code__.co_filename
    frames = [it for it in traceback.extract_tb(error.__traceback__) if it.filename == file]
    where = f"line {frames[-1].lineno}: `{frames[-1].line}`" if frames else "in what it calls"
    if isinstance(error, TraceError) and "control flow" in str(error):
        return (
            f"decides by a value that only a run has ({where}), which a cut would lose: put it into a module "
            "of its own"
        )
    said = str(error).splitlines()
    return f"cannot be followed ({where}): {type(error).__name__}{f': {said[0]}' if said else ''}"


def _class(module: nn.Module) -> str:
    return type(module).__qualname__
