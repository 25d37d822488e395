"""Tensors that share elements, by where they lie in memory.

On any device: only addresses are compared, nothing is read. It must not know what is done about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """From the first byte of a tensor to behind its last."""

    name: str
    tensor: torch.Tensor
    start: int
    end: int


def sharing(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, str]]:
    """Pairs of names whose tensors have an element in common. Views between each other's elements have none.

    Tensors without memory of their own (sparse, lazy, meta, of a subclass) share nothing.
    """
    by_device: dict[torch.device, list[_Span]] = {}
    for name, tensor in tensors.items():
        if _has_memory(tensor):
            by_device.setdefault(tensor.device, []).append(_span(name, tensor))
    for spans in by_device.values():
        before: list[_Span] = []
        for span in sorted(spans, key=lambda span: span.start):
            before = [other for other in before if other.end > span.start]
            for other in before:
                if np.shares_memory(_elements(other.tensor), _elements(span.tensor)):
                    yield other.name, span.name
            before.append(span)


def _has_memory(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return plain and tensor.layout is torch.strided and not tensor.is_meta and tensor.numel() > 0


def _span(name: str, tensor: torch.Tensor) -> _Span:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return _Span(name=name, tensor=tensor, start=start, end=start + (last + 1) * tensor.element_size())


class _Elements:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * tensor.element_size() for stride in tensor.stride()),
            "typestr": f"|V{tensor.element_size()}",
        }


def _elements(tensor: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.void]]:
    """An array over the same addresses, never to be read: they may be another device's."""
    return np.asarray(_Elements(tensor))
