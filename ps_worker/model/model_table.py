"""A model and its optimizer as a table: names, shapes, groups; what is not in a table goes along as state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import safetensors.torch
import torch
from torch.nn.parameter import is_lazy

from ps_wire.errors import ModelUnsupported, ParameterUnsupported, UsageError
from ps_wire.spec.table import BucketOptions, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.memory.aliasing import sharing
from ps_worker.memory.flat import stride_of
from ps_worker.model.hyperparameters import spec_of

# Parameters of these dtypes have a float32 master on the servers; what is pulled is rounded.
MASTERS = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
ASIDE = "keep it in a plain attribute of its module, not as a buffer"
NO_VALUES = "is on the meta device and has no values: give the model some before wrap (model.to_empty)"
REPLICATED = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"}


def parameters_of(
    model: torch.nn.Module, groups: Iterable[Mapping[str, Any]]
) -> dict[str, torch.nn.Parameter]:
    """The parameters of param-groups by their names in the model, in registration order.

    Raises:
        UsageError: the groups hold a parameter that the model does not have, or none that it has.
        ModelUnsupported: the model is split or replicated by something else already.
        ParameterUnsupported: one shares memory with another one or a buffer, and both are named; or autograd
            does not follow it.
    """
    _check_modules(model)
    grouped = {id(parameter) for group in groups for parameter in group["params"]}
    named = {}
    for name, parameter in model.named_parameters():
        if type(parameter) is not torch.nn.Parameter and type(parameter.data).__name__ == "DTensor":
            raise ModelUnsupported(f"parameter {name!r} is a DTensor, a part of one: wrap the bare module")
        if id(parameter) in grouped:
            named[name] = parameter
            if not is_lazy(parameter) and parameter.is_inference():
                raise ParameterUnsupported(
                    f"parameter {name!r} was made under torch.inference_mode(), and autograd does not follow "
                    "it: make the model outside of it"
                )
    strangers = len(grouped) - len(named)
    if strangers:
        raise UsageError(
            f"the optimizer holds {strangers} parameters that the model does not have: "
            "wrap it with the module whose parameters it was made from"
        )
    for one, other in sharing({**dict(model.named_parameters()), **dict(model.named_buffers())}):
        if one in named or other in named:
            raise ParameterUnsupported(
                f"{one!r} and {other!r} share memory, and wrap gives a parameter memory of its own: "
                "make them one parameter (b.weight = a.weight), or clone one before the optimizer is made"
            )
    return named


def _check_modules(model: torch.nn.Module) -> None:
    """Refuses a model whose gradients something else averages or whose parameters it splits."""
    first_of: dict[type, str] = {}
    for name, module in model.named_modules():
        first_of.setdefault(type(module), name)
    for cls, name in first_of.items():
        kind = cls.__name__
        if kind in REPLICATED or any(base.__name__ == "FSDPModule" for base in cls.__mro__):
            where = f"its module {name!r}" if name else "the model"
            raise ModelUnsupported(
                f"{where} is wrapped by {kind}: the servers take its part (averaging gradients, holding "
                "the optimizer's state). Wrap the bare module instead"
            )


def table_of(
    number: int,
    parameters: Mapping[str, torch.Tensor],
    *,
    group_of: Mapping[int, int],
    optimizer: OptimizerSpec,
    buckets: BucketOptions,
    masters: Mapping[torch.dtype, torch.dtype] | None = None,
    clip_grad_norm: float | None = None,
    stages: tuple[int, ...] | None = None,
) -> TableSpec:
    """The description that servers and other workers get.

    Args:
        number: of the table.
        parameters: by name, in registration order.
        group_of: id of a parameter -> its param-group.
        optimizer: as data.
        buckets: sizes.
        masters: the dtypes that servers hold in place of others.
        clip_grad_norm: the largest norm of a step's mean gradient.
        stages: of a pipeline, by parameter; those of other stages have no values here. None: it is none.

    Raises:
        ParameterUnsupported: a parameter is sparse, complex, lazy, without values or of a dtype that servers
            do not hold.
        UsageError: one is no tensor.
    """
    devices: dict[torch.device, int] = {}
    specs = []
    for name, parameter in parameters.items():
        if not isinstance(parameter, torch.Tensor):
            kind = type(parameter)
            raise UsageError(
                f"{name!r} is a {kind.__module__}.{kind.__qualname__}: give a tensor (torch.as_tensor(x))"
            )
        if isinstance(parameter, torch.nn.UninitializedParameter):
            raise ParameterUnsupported(f"parameter {name!r} is lazy: run the model once before wrap")
        if parameter.layout is not torch.strided:
            raise ParameterUnsupported(f"parameter {name!r} is {parameter.layout}: tables are dense")
        if parameter.is_meta and stages is None:
            raise ParameterUnsupported(f"parameter {name!r} {NO_VALUES}")
        if parameter.is_complex():
            raise ParameterUnsupported(
                f"parameter {name!r} is complex ({parameter.dtype}): keep it as two real ones, "
                "for instance torch.view_as_real(x)"
            )
        dtype = (masters or {}).get(parameter.dtype, parameter.dtype)
        specs.append(
            ParameterSpec(
                name=name,
                shape=tuple(parameter.shape),
                dtype=str(dtype).removeprefix("torch."),
                group=group_of[id(parameter)],
                device=devices.setdefault(parameter.device, len(devices)) if stages is None else 0,
                stride=stride_of(parameter),
            )
        )
    return TableSpec(
        number=number,
        parameters=tuple(specs),
        optimizer=optimizer,
        buckets=buckets,
        clip_grad_norm=clip_grad_norm,
        stages=stages if stages and any(stages) else (),
    )


def model_table(
    number: int,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Mapping[str, Any]],
    *,
    buckets: BucketOptions,
    clip_grad_norm: float | None = None,
    stages: tuple[int, ...] | None = None,
) -> TableSpec:
    """The table of a model's parameters under its optimizer. Raises what `table_of` and `spec_of` raise."""
    group_of = {id(parameter): index for index, group in enumerate(groups) for parameter in group["params"]}
    return table_of(
        number,
        parameters,
        group_of=group_of,
        optimizer=spec_of(optimizer, groups),
        buckets=buckets,
        masters=MASTERS,
        clip_grad_norm=clip_grad_norm,
        stages=stages,
    )


def outside_of(model: torch.nn.Module, inside: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """All that a model is made of beside a table: its buffers, and parameters without an optimizer.

    Raises:
        ParameterUnsupported: one cannot be packed, with the reason.
    """
    known = {id(tensor) for tensor in inside}
    named = [*model.named_parameters(), *model.named_buffers()]
    outside = {name: tensor for name, tensor in named if id(tensor) not in known}
    for name, tensor in outside.items():
        fault = fault_of(tensor)
        if fault is not None:
            raise ParameterUnsupported(f"{name!r} {fault}")
    return outside


def fault_of(tensor: torch.Tensor) -> str | None:
    """Why a tensor outside tables cannot be packed, or None."""
    if is_lazy(tensor):
        return "is lazy: run the model once before wrap"
    if tensor.is_meta:
        return NO_VALUES
    if tensor.layout is not torch.strided:
        return f"is {tensor.layout}, and a job keeps dense ones: {ASIDE}"
    if not _packs(tensor.dtype):
        return f"is {tensor.dtype}, which a job cannot keep: {ASIDE}"
    return None


@cache
def _packs(dtype: torch.dtype) -> bool:
    if dtype.is_complex:
        return True
    try:
        safetensors.torch.save({"": torch.empty(0, dtype=dtype, device="cpu")})
    except (KeyError, RuntimeError):
        return False
    return True


def pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors as safetensors; complex ones as real ones of shape (..., 2)."""
    return safetensors.torch.save(
        # safetensors refuses tensors that share memory, as buffers may
        {name: _real(tensor.detach()).cpu().contiguous().clone() for name, tensor in tensors.items()}
    )


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def unpack(blob: bytes, prefix: str = "") -> dict[str, torch.Tensor]:
    """Packed tensors whose names begin with a prefix, by the rest of their names."""
    loaded = safetensors.torch.load(blob)
    return {name.removeprefix(prefix): it for name, it in loaded.items() if name.startswith(prefix)}


def misfit(got: torch.Tensor | None, tensor: torch.Tensor) -> str | None:
    """Why an unpacked tensor cannot be copied into one of the same name, or None."""
    shape = (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)
    if got is not None and got.shape == shape:
        return None
    there = "missing" if got is None else f"of shape {tuple(got.shape)}"
    return f"has shape {shape} here; in the job it is {there}"


def copy_into(loaded: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """Copies unpacked tensors into those of the same name.

    Raises:
        UsageError: a name or shape differs; nothing was copied.
    """
    for name, tensor in tensors.items():
        fault = misfit(loaded.get(name), tensor)
        if fault is not None:
            raise UsageError(f"{name!r} {fault}")
    for name, tensor in tensors.items():
        got = torch.view_as_complex(loaded[name]) if tensor.is_complex() else loaded[name]
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():  # else torch refuses to write it
            if 0 in tensor.stride():  # elements that share a place
                tensor.data = tensor.contiguous()
            tensor.copy_(got)
