"""The extras of a model, which lie beside its table: buffers, and parameters without an optimizer.

A script may put another tensor in a buffer's place at any time (`self.mean = 0.9 * self.mean + ...`, or
`model.to(device)`, which makes all of them anew). So what is kept here is names; the tensors are looked up
whenever they are packed or loaded. A name that is then not as it was at wrap stops no training: the log says
so, once. When to pack and load is `SideState`'s affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from ps_worker.model import model_table


class ModelExtras:
    """The extras of one model, looked up by name. Used by the thread that trains."""

    def __init__(
        self, model: torch.nn.Module, inside: Iterable[torch.Tensor], say: Callable[[str], None]
    ) -> None:
        """Notes what there is.

        Args:
            model: in which names are looked up.
            inside: its parameters that the table has.
            say: logs a line.

        Raises:
            ParameterUnsupported: a tensor cannot be kept; it is named.
        """
        self._model = model
        self._say = say
        self._said: set[str] = set()
        outside = model_table.outside_of(model, inside)
        self._kinds = {name: _kind(tensor) for name, tensor in outside.items()}
        self._buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
        name_of = {id(tensor): name for name, tensor in outside.items()}
        self._other_names = {  # of one that has several
            other: name_of[id(tensor)]
            for other, tensor in self._now().items()
            if id(tensor) in name_of and other not in outside
        }

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self._kinds)

    def tensors(self) -> dict[str, torch.Tensor]:
        """As they are now, not copies. What cannot be kept any more is left out, and said."""
        now = self._now()
        for name, _ in self._model.named_buffers():
            if name not in self._buffers:
                self._say_once(f"buffer {name!r} is new since wrap: each worker keeps its own")
        for other, name in self._other_names.items():
            if now.get(other) is not now.get(name):
                self._say_once(f"{name!r} and {other!r} were one tensor at wrap: the job keeps the first")
        kept = {}
        for name, kind in self._kinds.items():
            tensor = now.get(name)
            if tensor is None:
                self._say_once(f"{name!r} is no longer in the model: the job does not keep it")
                continue
            fault = model_table.fault_of(tensor)
            if fault is not None:
                self._say_once(f"{name!r} {fault}: each worker keeps its own")
                continue
            if _kind(tensor) != kind:
                self._say_once(f"{name!r} was {kind} at wrap and is {_kind(tensor)} now")
            kept[name] = tensor
        return kept

    def load(self, loaded: Mapping[str, torch.Tensor]) -> None:
        """Copies what fits into the model; what does not stays as it is here, and is said."""
        now = self._now()
        others = {other: now[other] for other in self._other_names.keys() & now.keys()}
        known = dict(loaded)
        known.update({other: loaded[name] for other, name in self._other_names.items() if name in loaded})
        fitting = {}
        for name, tensor in {**self.tensors(), **others}.items():
            misfit = model_table.misfit(known.get(name), tensor)
            if misfit is None:
                fitting[name] = tensor
            else:
                self._say_once(f"{name!r} {misfit}: it stays as it is here")
        model_table.copy_into(known, fitting)

    def _now(self) -> dict[str, torch.Tensor]:
        return {
            **dict(self._model.named_parameters(remove_duplicate=False)),
            **dict(self._model.named_buffers(remove_duplicate=False)),
        }

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
