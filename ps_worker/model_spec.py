"""A model and its optimizer as a table: names, shapes, groups; what is not in a table goes along as state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import safetensors.torch
import torch

from ps_wire.errors import ParameterUnsupported, UsageError
from ps_wire.table import BucketOptions, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.flat import stride_of
from ps_worker.hyperparameters import spec_of


def parameters_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.nn.Parameter]:
    """The optimizer's parameters by their names in the model, in registration order.

    Raises:
        UsageError: the optimizer holds a parameter that the model does not have.
    """
    grouped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    named = {name: parameter for name, parameter in model.named_parameters() if id(parameter) in grouped}
    strangers = len(grouped) - len(named)
    if strangers:
        raise UsageError(
            f"the optimizer holds {strangers} parameters that the model does not have: "
            "wrap it with the module whose parameters it was made from"
        )
    return named


def table_of(
    number: int,
    parameters: Mapping[str, torch.Tensor],
    *,
    group_of: Mapping[int, int],
    optimizer: OptimizerSpec,
    buckets: BucketOptions,
) -> TableSpec:
    """The description that servers and other workers get.

    Args:
        number: of the table.
        parameters: by name, in registration order.
        group_of: id of a parameter -> its param-group.
        optimizer: as data.
        buckets: sizes.

    Raises:
        ParameterUnsupported: a parameter is sparse, complex, lazy or of a dtype that servers do not hold.
    """
    devices: dict[torch.device, int] = {}
    specs = []
    for name, parameter in parameters.items():
        if isinstance(parameter, torch.nn.UninitializedParameter):
            raise ParameterUnsupported(f"parameter {name!r} is lazy: run the model once before wrap")
        if parameter.layout is not torch.strided:
            raise ParameterUnsupported(f"parameter {name!r} is {parameter.layout}: tables are dense")
        specs.append(
            ParameterSpec(
                name=name,
                shape=tuple(parameter.shape),
                dtype=str(parameter.dtype).removeprefix("torch."),
                group=group_of[id(parameter)],
                device=devices.setdefault(parameter.device, len(devices)),
                stride=stride_of(parameter),
            )
        )
    return TableSpec(number=number, parameters=tuple(specs), optimizer=optimizer, buckets=buckets)


def model_table(
    number: int,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    buckets: BucketOptions,
) -> TableSpec:
    """The table of a model's parameters under its optimizer. Raises what `table_of` and `spec_of` raise."""
    groups = {
        id(parameter): index
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    }
    return table_of(number, parameters, group_of=groups, optimizer=spec_of(optimizer), buckets=buckets)


def outside_of(model: torch.nn.Module, inside: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """All that a model is made of beside a table: its buffers, and parameters without an optimizer."""
    known = {id(tensor) for tensor in inside}
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor for name, tensor in named if id(tensor) not in known}


def pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors as safetensors."""
    return safetensors.torch.save(
        # safetensors refuses tensors that share memory, as buffers may
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    )


def unpack_into(blob: bytes, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copies packed tensors into those of the same name.

    Raises:
        UsageError: a name or shape differs; nothing was copied.
    """
    loaded = safetensors.torch.load(blob)
    for name, tensor in tensors.items():
        got = loaded.get(name)
        if got is None or got.shape != tensor.shape:
            shape = "missing" if got is None else f"of shape {tuple(got.shape)}"
            raise UsageError(f"{name!r} has shape {tuple(tensor.shape)} here; in the job it is {shape}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(loaded[name])
