"""Tensors as bytes, and received bytes as tensors, without a copy."""

from __future__ import annotations

import warnings

import torch

with warnings.catch_warnings():  # torch says once that it cannot write to bytes; nobody here does
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


class Place:
    """Memory in which one payload after the other lies, and the tensor over it, made once.

    A tensor that goes lets go of the interpreter, and waits for it again: where several threads want it, that
    takes longer than all else that a frame costs (0.1 to 0.3 ms).
    """

    __slots__ = ("_memory", "_tensors")

    def __init__(self, memory: memoryview) -> None:
        """Keeps the memory alive."""
        self._memory = memory
        self._tensors: dict[torch.dtype, torch.Tensor] = {}

    def __len__(self) -> int:
        return len(self._memory)

    def tensor(self, dtype: torch.dtype) -> torch.Tensor:
        """A 1-D tensor over it, the same each time; it must only be read."""
        made = self._tensors.get(dtype)
        if made is None:
            made = self._tensors[dtype] = torch.frombuffer(self._memory, dtype=dtype)
        return made


def as_tensor(payload: bytes | memoryview | Place, dtype: torch.dtype) -> torch.Tensor:
    """A 1-D tensor over a payload; it must only be read, and keeps the payload alive."""
    return payload.tensor(dtype) if isinstance(payload, Place) else torch.frombuffer(payload, dtype=dtype)


def bytes_of(values: torch.Tensor) -> memoryview:
    """The bytes of a contiguous 1-D tensor of any dtype: numpy has no bfloat16."""
    return values.view(torch.uint8).numpy().data
