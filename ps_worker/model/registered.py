"""The state that a script has registered with the job (schedulers, generators, tensors), and its encoding.

A state is what `state_dict()` gives: nested dicts, lists and plain values, with tensors in it. Its structure
travels as JSON, its tensors as tensors, both in one safetensors: nothing is pickled.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ps_wire.errors import UsageError

PREFIX = "@state/"
PLAIN = (str, int, float, bool, type(None))


class Registered:
    """Objects whose state is kept with the job, by name. Used by the thread that trains."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._kept: dict[str, Any] = {}
        self._arrived: Mapping[str, torch.Tensor] = {}
        self._own = False
        self._said: set[str] = set()

    def __bool__(self) -> bool:
        """Whether anything is registered."""
        return bool(self._kept)

    def add(self, name: str, kept: Any) -> None:
        """Keeps something under a name; it is set to what has arrived under that name.

        Raises:
            UsageError: the name is taken or cannot travel, or what is kept is of no kind that can be kept.
        """
        if not name or len(name) > 200 or not name.isprintable() or "/" in name:
            raise UsageError(f"register_state: {name!r} is no name: printable, no '/', up to 200 characters")
        ours = name.startswith("@")  # of a wrap that Ctrl-C ended, and that is called again
        if self._kept.get(name, kept) is not kept and not ours:
            raise UsageError(f"register_state: {name!r} is another object's name already")
        encode(read_state(name, kept), [])
        self._kept[name] = kept
        self._set(name)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All states, as tensors by name."""
        packed: dict[str, torch.Tensor] = {}
        for name, kept in self._kept.items():
            found: list[torch.Tensor] = []
            try:
                text = json.dumps(encode(read_state(name, kept), found)).encode()
            except UsageError as error:
                self._say_once(f"{error.message}: a worker that joins does not get it")
                continue
            packed[f"{PREFIX}{name}"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            for index, tensor in enumerate(found):
                packed[f"{PREFIX}{name}/{index}"] = tensor
        return packed

    def load(self, packed: Mapping[str, torch.Tensor], *, own: bool = False) -> None:
        """Sets what is registered, and what will be, to what was packed and has arrived.

        Args:
            packed: see `tensors`.
            own: it was this worker that packed it; else generators stay as they are.
        """
        self._arrived, self._own = packed, own
        for name in self._kept:
            self._set(name)

    def _set(self, name: str) -> None:
        kept, text = self._kept[name], self._arrived.get(f"{PREFIX}{name}")
        if text is None or (isinstance(kept, torch.Generator) and not self._own):
            return
        structure = json.loads(bytes(text.tolist()))
        write_state(kept, decode(structure, lambda index: self._arrived[f"{PREFIX}{name}/{index}"]))

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


def read_state(name: str, kept: Any) -> Any:
    """The state of something that is registered.

    Raises:
        UsageError: it has none.
    """
    if isinstance(kept, torch.Tensor):
        return kept.detach()
    if isinstance(kept, torch.Generator):
        return kept.get_state()
    if callable(getattr(kept, "state_dict", None)) and callable(getattr(kept, "load_state_dict", None)):
        return kept.state_dict()
    raise UsageError(
        f"register_state: {name!r} is a {type(kept).__name__}, which has no state_dict and load_state_dict "
        "and is no tensor or torch.Generator"
    )


def write_state(kept: Any, state: Any) -> None:
    """Sets what `read_state` has read."""
    if isinstance(kept, torch.Tensor):
        with torch.no_grad():
            kept.copy_(state)
    elif isinstance(kept, torch.Generator):
        kept.set_state(state)
    else:
        kept.load_state_dict(state)


def encode(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A state as JSON has it: plain values as they are, everything else as an object with one tag.

    Args:
        value: the state.
        tensors: those in it are added here.

    Raises:
        UsageError: it holds something else.
    """
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return {"tensor": len(tensors) - 1}
    if isinstance(value, Mapping):
        tag = "counter" if isinstance(value, Counter) else "dict"
        return {tag: [[encode(key, tensors), encode(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [encode(item, tensors) for item in value]}
    raise UsageError(f"register_state: a state holds a {type(value).__name__}, which cannot travel")


def decode(value: Any, tensor: Callable[[int], torch.Tensor]) -> Any:
    """The state that was encoded; `tensor` gives its tensors by number."""
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    match tag:
        case "tensor":
            return tensor(content)
        case "list" | "tuple":
            items = [decode(item, tensor) for item in content]
            return tuple(items) if tag == "tuple" else items
    pairs = {decode(key, tensor): decode(item, tensor) for key, item in content}
    return Counter(pairs) if tag == "counter" else pairs


class GroupsInForce:
    """The `param_groups` of an optimizer, without its parameters, as something that can be registered."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> list[dict[str, Any]]:
        """All hyper-parameters, by group."""
        return [
            {name: value for name, value in group.items() if name != "params" and _travels(value)}
            for group in self._optimizer.param_groups
        ]

    def load_state_dict(self, groups: list[dict[str, Any]]) -> None:
        """Sets them; groups that are not there yet keep what they get later."""
        for group, given in zip(self._optimizer.param_groups, groups, strict=False):
            group.update(given)


def _travels(value: Any) -> bool:
    try:
        encode(value, [])
    except UsageError:
        return False
    return True
