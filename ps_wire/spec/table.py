"""The parts of a table: parameters by name and shape, bucket sizes, an optimizer as data.

Values only. How they are cut is in `plan`, how they cross the wire in `messages`. The first difference
between two tables is found here, because both ends name it the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from ps_wire.errors import ParameterUnsupported, TableMismatch, UsageError
from ps_wire.spec.dtypes import item_bytes

Value: TypeAlias = float | int | bool | str | tuple[float, ...] | None
Group: TypeAlias = tuple[tuple[str, Value], ...]

PAGE_BYTES = 4096
MAX_TABLES = 64  # of a job
MAX_STAGES = 1024  # of a pipeline: as many as a group has ranks
MIB = 1 << 20
MAX_PARAMETERS = 65_536
MAX_NAME = 1000  # characters
MAX_TEXT = 64  # characters of a hyper-parameter that is a text, or of the name of one


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """One parameter.

    Attributes:
        name: as in the model's `named_parameters()`.
        shape: its sizes; `()` is a scalar.
        dtype: as torch names it.
        group: index of its param-group in the optimizer.
        device: ordinal of its device among those that the model uses, 0 for a model on one device.
        stride: in elements, when not contiguous; empty otherwise. Workers must agree on it, since
            elements travel in memory order.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    group: int = 0
    device: int = 0
    stride: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.name) > MAX_NAME:
            raise ParameterUnsupported(
                f"a parameter's name has at most {MAX_NAME} characters, got {len(self.name)}: "
                f"{self.name[:64]!r}..."
            )
        item_bytes(self.dtype, self.name)
        if min(self.shape, default=0) < 0 or len(self.shape) > 64:
            raise ParameterUnsupported(f"parameter {self.name!r} has shape {self.shape}")
        if self.stride and len(self.stride) != len(self.shape):
            raise ParameterUnsupported(
                f"parameter {self.name!r} has {len(self.shape)} sizes and {len(self.stride)} strides"
            )

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketOptions:
    """Sizes of buckets and partitions, in bytes.

    Attributes:
        bucket_bytes: a bucket takes parameters up to this size; a larger parameter is one of its own.
        first_bucket_bytes: of the bucket that backward fills first: small, so that it leaves early.
        partition_bytes: the most that travels in one frame; a multiple of 4096, at most 8 MiB.
    """

    bucket_bytes: int = 25 * MIB
    first_bucket_bytes: int = 1 * MIB
    partition_bytes: int = 8 * MIB

    def __post_init__(self) -> None:
        if self.bucket_bytes < 0 or self.first_bucket_bytes < 0:
            raise UsageError(
                f"bucket sizes must be >= 0, got {self.bucket_bytes} and {self.first_bucket_bytes}"
            )
        if not PAGE_BYTES <= self.partition_bytes <= 8 * MIB or self.partition_bytes % PAGE_BYTES:
            raise UsageError(
                f"partition_bytes must be a multiple of {PAGE_BYTES} in {PAGE_BYTES}..{8 * MIB}, "
                f"got {self.partition_bytes}"
            )


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """All that `param_groups` hold except the parameters: per group, pairs sorted by name."""

    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        for group in self.groups:
            names = [name for name, _ in group]
            if names != sorted(set(names)):
                raise UsageError(f"hyper-parameters must be sorted and unique, got {names}")
            for name, value in group:
                if len(name) > MAX_TEXT or (isinstance(value, str) and len(value) > MAX_TEXT):
                    raise UsageError(
                        f"names and texts of hyper-parameters have at most {MAX_TEXT} characters, got "
                        f"{name[:MAX_TEXT]!r}: {str(value)[:MAX_TEXT]!r}..."
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """An optimizer as data.

    Attributes:
        name: its class in `torch.optim`.
        hyperparameters: of the start; later ones travel with the pushes.
    """

    name: str
    hyperparameters: Hyperparameters


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A model with its optimizer, as servers see it.

    Attributes:
        number: the order in which workers make their tables, from 0.
        parameters: in registration order.
        clip_grad_norm: the mean gradient of a BSP step is scaled down to this L2 norm over all parameters.
        stages: of a pipeline, by parameter: no bucket holds parameters of two stages; empty: there is one.
            It is how the job's first worker has cut the table, and no part of what tables are compared by.
    """

    number: int
    parameters: tuple[ParameterSpec, ...]
    optimizer: OptimizerSpec
    buckets: BucketOptions = BucketOptions()
    clip_grad_norm: float | None = None
    stages: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.parameters:
            raise ParameterUnsupported(f"table {self.number} has no parameters")
        if self.clip_grad_norm is not None and not 0.0 < self.clip_grad_norm < math.inf:
            raise UsageError(f"clip_grad_norm must be finite and > 0, got {self.clip_grad_norm}")
        check_count(self.number, len(self.parameters))
        if self.stages and len(self.stages) != len(self.parameters):
            raise UsageError(f"{len(self.parameters)} parameters have {len(self.stages)} stages")
        if not all(0 <= stage < MAX_STAGES for stage in self.stages):
            raise UsageError(f"stages are numbered from 0 to {MAX_STAGES - 1}")
        groups = len(self.optimizer.hyperparameters.groups)
        seen: set[str] = set()
        for parameter in self.parameters:
            if parameter.name in seen:
                raise ParameterUnsupported(f"two parameters are named {parameter.name!r}")
            seen.add(parameter.name)
            if not 0 <= parameter.group < groups:
                raise ParameterUnsupported(
                    f"parameter {parameter.name!r} is in param-group {parameter.group}; "
                    f"the optimizer has {groups}"
                )


def check_count(table: int, num_parameters: int) -> None:
    """Refuses more parameters than a server looks at in a moment.

    Raises:
        ParameterUnsupported: with the way out.
    """
    if num_parameters > MAX_PARAMETERS:
        raise ParameterUnsupported(
            f"table {table} has {num_parameters} parameters, and one has at most {MAX_PARAMETERS}: "
            "make several tables, or fewer and larger parameters"
        )


def check_same(ours: TableSpec, theirs: TableSpec) -> None:
    """Compares the table that a job has with the one that a worker brings, which takes over its stages.

    Raises:
        TableMismatch: naming the first difference: what, expected, got.
    """
    difference = _first_difference(ours, theirs)
    if difference is None:
        return
    what, expected, got = difference
    raise TableMismatch(
        f"table {ours.number} of this job differs: {what}: the job has {expected}, this worker has {got}",
        what=what,
        expected=str(expected),
        got=str(got),
    )


Difference: TypeAlias = tuple[str, object, object]


def _first_difference(ours: TableSpec, theirs: TableSpec) -> Difference | None:
    if ours is theirs:
        return None
    for expected, got in zip(ours.parameters, theirs.parameters, strict=False):
        if expected.name != got.name:
            return "name of a parameter", expected.name, got.name
        for field in ("shape", "dtype", "group", "device", "stride"):
            if getattr(expected, field) != getattr(got, field):
                what = f"{field} of parameter {expected.name!r}"
                return what, getattr(expected, field), getattr(got, field)
    for what, have, brought in (
        ("number of parameters", len(ours.parameters), len(theirs.parameters)),
        ("optimizer", ours.optimizer.name, theirs.optimizer.name),
        ("bucket sizes", ours.buckets, theirs.buckets),
        ("clip_grad_norm", ours.clip_grad_norm, theirs.clip_grad_norm),
        ("number of the table", ours.number, theirs.number),
    ):
        if have != brought:
            return what, have, brought
    return _first_hyper_difference(ours.optimizer.hyperparameters, theirs.optimizer.hyperparameters)


def _first_hyper_difference(ours: Hyperparameters, theirs: Hyperparameters) -> Difference | None:
    if len(ours.groups) != len(theirs.groups):
        return "number of param-groups", len(ours.groups), len(theirs.groups)
    for index, (expected, got) in enumerate(zip(ours.groups, theirs.groups, strict=True)):
        have = {name: repr(value) for name, value in expected}  # so that a NaN is like a NaN
        brought = {name: repr(value) for name, value in got}
        for name in sorted(have.keys() | brought.keys()):
            if have.get(name) != brought.get(name):
                what = f"{name} of param-group {index}"
                return what, have.get(name, "absent"), brought.get(name, "absent")
    return None
