"""Flat memory for the buckets of a table: one tensor per bucket, with a view for each parameter.

Legend: B = elements of a bucket with all padding.

Used twice per table: for weights, where `param.data` becomes the view, and for gradients, where hooks copy
to. Who may write when is `exchange`'s and `wrapped`'s affair; see docs/architecture.md, region ownership.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ps_wire.frames.buffer import bytes_of
from ps_wire.sockets.shared_memory import Layout
from ps_wire.spec.plan import Partition, Plan
from ps_wire.spec.table import ParameterSpec
from ps_worker.memory.os_memory import private_memory

Array: TypeAlias = npt.NDArray[np.floating[Any]]


class FlatBuckets:
    """One flat tensor for each bucket, and a view for each parameter."""

    def __init__(
        self,
        plan: Plan,
        *,
        private: bool = False,
        memory: mmap.mmap | None = None,
        held: Collection[int] | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Allocates zeros, shape (B,) per bucket, on the CPU.

        Args:
            plan: of the table.
            private: children that this process forks (loaders) get none of the memory.
            memory: zeros to use, where they are shared with shards.
            held: buckets that this process writes; the others take address space alone. None: all.
            device: where zeros are allocated instead; views of one bucket share its storage there.
        """
        self.views: list[torch.Tensor] = [torch.empty(0, device="cpu")] * len(plan.parameters)
        if device is not None:
            self.tensors = [
                torch.zeros(it.numel, dtype=getattr(torch, it.dtype), device=device) for it in plan.buckets
            ]
            for bucket, tensor in zip(plan.buckets, self.tensors, strict=True):
                for it in bucket.placements:
                    there = tensor[it.offset : it.offset + it.numel]
                    self.views[it.parameter] = shaped(there, plan.parameters[it.parameter])
            return
        self.tensors = (
            [
                _zeros(
                    bucket.numel,
                    getattr(torch, bucket.dtype),
                    private=private or (held is not None and bucket.index not in held),
                )
                for bucket in plan.buckets
            ]
            if memory is None
            else _tensors_in(memory, plan)
        )
        for bucket, tensor in zip(plan.buckets, self.tensors, strict=True):
            flat = tensor.numpy()
            for placement in bucket.placements:
                piece = flat[placement.offset : placement.offset + placement.numel]
                self.views[placement.parameter] = tensor_of(piece, plan.parameters[placement.parameter])

    def partition(self, partition: Partition) -> torch.Tensor:
        """A partition's elements, a view."""
        return self.tensors[partition.bucket][partition.offset : partition.offset + partition.numel]

    def bytes_of(self, partition: Partition) -> memoryview:
        """A partition's bytes, without a copy."""
        return bytes_of(self.partition(partition))


def _tensors_in(memory: mmap.mmap, plan: Plan) -> list[torch.Tensor]:
    layout = Layout(plan)
    return [
        torch.frombuffer(
            memory,
            dtype=getattr(torch, bucket.dtype),
            count=bucket.numel,
            offset=layout.start_of(bucket.index),
        )
        for bucket in plan.buckets
        if bucket.numel
    ]


def _zeros(numel: int, dtype: torch.dtype, *, private: bool) -> torch.Tensor:
    if private:
        return private_memory(numel * dtype.itemsize, dtype)
    return torch.zeros(numel, dtype=dtype, device="cpu")


def tensor_of(piece: Array, spec: ParameterSpec) -> torch.Tensor:
    """A piece of flat memory as the parameter: its shape, its strides, and a storage of its own.

    For whoever saves or copies a model looks at storages. Of tensors that share one, Accelerate drops all but
    one, safetensors refuses them, and torch.save and deepcopy take the whole storage for each.
    """
    if not piece.size:
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="cpu")
    if spec.stride:
        return torch.from_numpy(piece).as_strided(spec.shape, spec.stride)
    return torch.from_numpy(piece.reshape(spec.shape))


def twin(view: torch.Tensor) -> torch.Tensor:
    """The same elements with another storage object: what moves the one's memory leaves the other's.

    Of an accelerator it is the view itself: no parameter lies there.
    """
    if not view.is_cpu:
        return view
    return torch.from_numpy(view.numpy())


def shaped(flat: torch.Tensor, spec: ParameterSpec) -> torch.Tensor:
    """A flat tensor seen as the parameter: its shape, and its strides where it has its own."""
    if spec.stride:
        return flat.as_strided(spec.shape, spec.stride)
    return flat.view(spec.shape)


def stride_of(parameter: torch.Tensor) -> tuple[int, ...]:
    """Strides of a parameter that fills its memory densely in another order; empty otherwise."""
    if parameter.is_contiguous() or parameter.numel() == 0:
        return ()
    strides = parameter.stride()
    order = sorted(range(parameter.dim()), key=lambda dim: (-strides[dim], dim))
    dense = parameter.permute(order).is_contiguous()
    return tuple(strides) if dense else ()
