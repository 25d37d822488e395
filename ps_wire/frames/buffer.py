"""Tensors as bytes, and received bytes as tensors, without a copy."""

from __future__ import annotations

import warnings

import torch

from ps_wire.frames.shared_place import SharedPlace

with warnings.catch_warnings():  # torch says once that it cannot write to bytes; nobody here does
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


def as_tensor(payload: bytes | memoryview | SharedPlace, dtype: torch.dtype) -> torch.Tensor:
    """A 1-D tensor over a payload; it must only be read, and keeps the payload alive."""
    if isinstance(payload, SharedPlace):
        return payload.seen_as(dtype, _tensor)
    return _tensor(payload, dtype)


def _tensor(payload: bytes | memoryview, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(payload, dtype=dtype)


def bytes_of(values: torch.Tensor) -> memoryview:
    """The bytes of a contiguous 1-D tensor of any dtype: numpy has no bfloat16."""
    return values.view(torch.uint8).numpy().data
