"""Optimizer state between torch's format, a dict per parameter, and the shards' messages, by pieces of it.

Legend: P = parameters of the table, N = elements of a parameter.

A tensor of the state has its parameter's shape, and in memory its strides; pieces of it are cut from that
memory. A scalar (`step`) belongs to the whole parameter, so each of its pieces has the same one. Tensors have
the table's dtype here, whatever dtype the script's parameter has. It must not know gRPC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ps_wire.errors import PayloadMismatch, UsageError
from ps_wire.frames import state_messages
from ps_wire.spec.plan import Piece, Plan
from ps_wire.spec.table import ParameterSpec
from ps_wire.v1 import shard_pb2 as pb
from ps_worker.memory.flat import shaped

SCALARS = frozenset({"step", "eta", "mu", "mu_product"})


class Gathering:
    """State of a table, put together from what shards send. Taking a message twice does no harm."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._pieces: dict[int, tuple[Piece, ...]] = {}
        self._flats: list[dict[str, torch.Tensor]] = [{} for _ in plan.parameters]
        self._names: list[dict[str, None]] = [{} for _ in plan.parameters]
        self._scalars: list[dict[int, dict[str, torch.Tensor]]] = [{} for _ in plan.parameters]

    def receive(self, message: pb.PartitionState) -> None:
        """Copies a message in.

        Raises:
            PayloadMismatch: it does not fit the plan.
        """
        if message.partition not in self._pieces:
            if message.partition >= self._plan.num_partitions:
                raise PayloadMismatch(f"state of partition {message.partition}, which is not in the plan")
            partition = self._plan.partition(message.partition)
            self._pieces[message.partition] = self._plan.pieces(partition)
        pieces = self._pieces[message.partition]
        for tensor in message.tensors:
            if tensor.piece >= len(pieces):
                raise PayloadMismatch(f"partition {message.partition} has {len(pieces)} pieces")
            piece = pieces[tensor.piece]
            values = state_messages.unpack(tensor, piece.numel)
            self._names[piece.parameter][tensor.name] = None
            if tensor.scalar:
                kept = self._scalars[piece.parameter].setdefault(piece.parameter_offset, {})
                kept[tensor.name] = values.clone()
            else:
                flat = self._flat(piece.parameter, tensor.name, values.dtype)
                flat[piece.parameter_offset : piece.parameter_offset + piece.numel].copy_(values)

    def _flat(self, parameter: int, name: str, dtype: torch.dtype) -> torch.Tensor:
        flats = self._flats[parameter]
        if name not in flats:
            flats[name] = torch.zeros(self._plan.parameters[parameter].numel, dtype=dtype, device="cpu")
        return flats[name]

    @property
    def differs(self) -> bool:
        """Whether pieces of one parameter have taken different numbers of steps."""
        counts = [{_steps(kept) for kept in pieces.values()} for pieces in self._scalars]
        return any(len(count) > 1 for count in counts)

    def states(self) -> list[dict[str, torch.Tensor]]:
        """P states in torch's format, on the CPU; empty where a parameter has none.

        Scalars are those of the piece that has taken most steps.
        """
        made: list[dict[str, torch.Tensor]] = []
        for spec, names, flats, pieces in zip(
            self._plan.parameters, self._names, self._flats, self._scalars, strict=True
        ):
            scalars = max(pieces.values(), key=_steps, default={})
            made.append(
                {name: shaped(flats[name], spec) if name in flats else scalars[name] for name in names}
            )
        return made


def _steps(scalars: Mapping[str, torch.Tensor]) -> float:
    return float(scalars["step"]) if "step" in scalars else 0.0


class Scattering:
    """State of a table, cut into messages for shards."""

    def __init__(self, plan: Plan, states: Sequence[Mapping[str, Any]]) -> None:
        """Takes P states in torch's format. Tensors of the table's dtype and layout are not copied.

        Raises:
            UsageError: a value has not its parameter's shape, or is no number; parameter and name are named.
        """
        self._plan = plan
        self._states = [
            {name: _value(spec, name, value) for name, value in state.items() if value is not None}
            for spec, state in zip(plan.parameters, states, strict=True)
        ]

    def messages(self, shard: int, key: pb.TableKey) -> Iterator[pb.PartitionState]:
        """All partitions of a shard, in one or more messages each; the first one has the key."""
        first = True
        for partition in self._plan.partitions_of_shard(shard):
            for message in state_messages.pack(partition.index, self._cut(self._plan.pieces(partition))):
                if first:
                    message.key.CopyFrom(key)
                    first = False
                yield message

    def _cut(self, pieces: Sequence[Piece]) -> Iterator[tuple[int, str, torch.Tensor]]:
        for index, piece in enumerate(pieces):
            start = piece.parameter_offset
            for name, value in self._states[piece.parameter].items():
                yield index, name, value if value.dim() == 0 else value[start : start + piece.numel]


def _value(spec: ParameterSpec, name: str, value: object) -> torch.Tensor:
    """A scalar of no dimension, or a tensor's memory, shape (N,); both as shards keep them."""
    if isinstance(value, bool | int | float):
        value = torch.tensor(
            float(value), dtype=torch.float32, device="cpu"
        )  # as torch makes of old checkpoints
    if not isinstance(value, torch.Tensor):
        raise UsageError(f"state {name!r} of parameter {spec.name!r} is {value!r}, which is no tensor")
    value = value.detach()
    if name in SCALARS and value.numel() == 1:
        kept = value.dtype in (torch.float32, torch.float64)
        return value.to("cpu", value.dtype if kept else torch.float32).reshape(())
    if tuple(value.shape) != spec.shape:
        raise UsageError(
            f"state {name!r} of parameter {spec.name!r} has shape {tuple(value.shape)}; "
            f"the parameter has {spec.shape}"
        )
    dtype = getattr(torch, spec.dtype)
    if value.layout is torch.strided and value.dtype is dtype and value.device.type == "cpu":
        dense = value.stride() == spec.stride if spec.stride else value.is_contiguous()
        if dense:
            return value.as_strided((spec.numel,), (1,))
    flat = torch.empty(spec.numel, dtype=dtype, device="cpu")
    shaped(flat, spec).copy_(value)
    return flat
