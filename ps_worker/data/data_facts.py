"""Facts of a loader's data, which all workers have to say alike. Nothing is read of the data.

It must not know who compares it, nor how an epoch is dealt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sized
from typing import Any

import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

MAX_ROWS = 1000  # of a tensor of whole numbers
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8, torch.bool)
MAX_TEXT = 80  # characters of a value; a longer one is said by its digest


def facts_of(dataset: Any, *, seed: int, shuffle: bool | None) -> dict[str, str]:
    """Name -> value, of a loader over this dataset.

    Args:
        dataset: of the loader.
        seed: of its order; it says nothing where nothing is shuffled.
        shuffle: as `Worker.loader` has it.
    """
    shuffled = not isinstance(dataset, IterableDataset) if shuffle is None else bool(shuffle)
    said = {"shuffle": str(shuffled)}
    if shuffled:
        said["seed"] = _short(str(seed))
    if isinstance(dataset, Sized):
        said["samples"] = str(len(dataset))
    mark = fingerprint(dataset)
    return said | ({"data": mark} if mark else {})


def fingerprint(dataset: Any) -> str:
    """Of datasets of torch that say what is in them without being read; "" of others.

    Of a `Subset` its indices, of a `TensorDataset` shapes and the first whole numbers, such as labels (others
    may differ in bits where each worker has computed them), of a `ConcatDataset` those of its parts.
    """
    kind = type(dataset)
    if kind is Subset:
        indices = ",".join(map(str, dataset.indices))
        return _digest(f"subset {indices} of {fingerprint(dataset.dataset)}")
    if kind is ConcatDataset:
        return _digest(" ".join(f"{len(part)} {fingerprint(part)}" for part in dataset.datasets))
    if kind is TensorDataset:
        return _digest(" ".join(_of_tensor(tensor) for tensor in dataset.tensors))
    return ""


def _of_tensor(tensor: torch.Tensor) -> str:
    numbers = ""
    if tensor.layout is torch.strided and tensor.dtype in _WHOLE:
        numbers = str(tensor[:MAX_ROWS].flatten()[:MAX_ROWS].tolist())
    return f"{tensor.dtype} {tuple(tensor.shape)} {numbers}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else _digest(text)
