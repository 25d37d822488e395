"""The parameters of a model that this process keeps: those of its stages; the others have no values here.

The tensors stay the same objects, so that an optimizer over the whole model goes on holding them. It must not
know who keeps the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator

import torch
from torch import nn

from ps_wire.errors import PipelineError


def let_go(model: nn.Module, kept: Collection[str]) -> None:
    """Moves all parameters but these, by name, to the meta device: their memory is free."""
    for name, parameter in model.named_parameters():
        if name not in kept and not parameter.is_meta:
            _become(parameter, torch.empty_like(parameter, device="meta"))


def materialize(model: nn.Module, kept: Collection[str], device: torch.device, seed: str) -> None:
    """Gives parameters among these, by name, and buffers that are on the meta device first values.

    Each module's `reset_parameters` makes them, with a seed of its own: so they are the
    same whatever else this process keeps.

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
        reset = getattr(module, "reset_parameters", None)
        if not callable(reset):
            what = f"module {name or type(module).__name__!r} ({type(module).__name__})"
            raise PipelineError(
                f"{what} is on the meta device, and has no reset_parameters() that makes its first values",
                module=name,
            )
        for parameter in direct:
            if parameter.is_meta:
                _become(parameter, torch.empty_like(parameter, device=device))
        saved = module.state_dict(keep_vars=True)
        for key in buffers:
            module.register_buffer(
                key,
                torch.empty_like(module.get_buffer(key), device=device),
                persistent=key in saved,
            )
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
            reset()
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


def _become(parameter: nn.Parameter, values: torch.Tensor) -> None:
    made = nn.Parameter(values, requires_grad=parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    torch.utils.swap_tensors(parameter, made)  # type: ignore[no-untyped-call]
