"""The parameters of a model that this process keeps: those of its stages; the others have no values here.

The tensors stay the same objects, so that an optimizer over the whole model goes on holding them. It must not
know who keeps the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator

import torch
from torch import nn

from ps_wire.errors import PipelineError
from ps_wire.process.allocator import give_back_freed_blocks


def check_first_values(model: nn.Module) -> None:
    """Refuses a model with tensors on the meta device that nobody gives values: all processes find the same.

    Raises:
        PipelineError: a module has no `reset_parameters`; it is named.
    """
    for name, module in model.named_modules():
        direct = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(it.is_meta for it in direct):
            _reset_of(name, module)


def let_go(model: nn.Module, kept: Collection[str]) -> None:
    """Moves all parameters but these, by name, to the meta device: the system has their memory back."""
    goes = [it for name, it in model.named_parameters() if name not in kept and not it.is_meta]
    for parameter in goes:
        _become(parameter, torch.empty_like(parameter, device="meta"))
    if goes:
        give_back_freed_blocks()


def move(stages: Iterable[nn.Module], device: torch.device) -> None:
    """Moves what stages are made of to a device; what has no values stays on the meta device."""
    for stage in stages:
        for tensor in (*stage.parameters(), *stage.buffers()):
            if tensor.device != device and not tensor.is_meta:
                _become(tensor, tensor.detach().to(device))


def materialize(model: nn.Module, kept: Collection[str], device: torch.device, seed: str) -> None:
    """Gives parameters among these, by name, and buffers that are on the meta device first values.

    Each module's `reset_parameters` makes them, with a seed of its own: so they are the
    same whatever else this process keeps, where it writes only into the module's own tensors. What has
    values keeps them, in whichever module: a parameter that several have gets those of the first one.

    Args:
        model: of which.
        kept: parameters by name.
        device: they come to lie on.
        seed: the same on all processes of a job.

    Raises:
        PipelineError: a module has no `reset_parameters`; it is named.
    """
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, module in model.named_modules():
        direct = [*module.parameters(recurse=False)]
        mine = [it for it in direct if it.is_meta and name_of[id(it)] in kept]
        buffers = [key for key, it in module.named_buffers(recurse=False) if it.is_meta]
        if not mine and not buffers:
            continue
        reset = _reset_of(name, module)
        there = [*module.parameters(), *module.buffers()]
        before = [(it, it.detach().clone()) for it in there if not it.is_meta]
        for parameter in direct:
            if parameter.is_meta:
                _become(parameter, torch.empty_like(parameter, device=device))
        for key in buffers:
            buffer = module.get_buffer(key)
            _become(buffer, torch.empty_like(buffer, device=device))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
            torch.manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
            reset()
            for tensor, values in before:
                tensor.copy_(values)
        for parameter in direct:
            if name_of[id(parameter)] not in kept:
                _become(parameter, torch.empty_like(parameter, device="meta"))


def shared_by(names: Iterator[Collection[str]]) -> dict[str, list[int]]:
    """By parameter, which of these collections have it, ascending."""
    holders: dict[str, list[int]] = {}
    for index, held in enumerate(names):
        for name in held:
            holders.setdefault(name, []).append(index)
    return holders


def _reset_of(name: str, module: nn.Module) -> Callable[[], object]:
    reset: Callable[[], object] | None = getattr(module, "reset_parameters", None)
    if not callable(reset):
        what = f"module {name or type(module).__name__!r} ({type(module).__name__})"
        raise PipelineError(
            f"{what} is on the meta device, and has no reset_parameters() that makes its first values",
            module=name,
        )
    return reset


def _become(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """A parameter or buffer has these values; stages made before have it, too, and an optimizer."""
    if isinstance(tensor, nn.Parameter):
        values = nn.Parameter(values, requires_grad=tensor.requires_grad)
    values.__dict__.update(tensor.__dict__)
    torch.utils.swap_tensors(tensor, values)  # type: ignore[no-untyped-call]
