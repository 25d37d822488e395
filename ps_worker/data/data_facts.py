"""Facts of a loader's data, which all workers have to say alike. Datasets are not asked for samples.

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
SUM_ROWS = 4  # of a tensor of other numbers
MAX_SUMS = 8  # of a loader
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


def sums_of(dataset: Any) -> list[float]:
    """Sums of the absolute values in a few rows of data that is no whole numbers.

    Of the same kinds of datasets as `fingerprint`. Workers that have computed the same data may differ in
    bits, so these are compared with a tolerance.
    """
    kind = type(dataset)
    if kind is Subset:
        return sums_of(dataset.dataset)
    if kind is ConcatDataset:
        return [it for part in dataset.datasets[:MAX_SUMS] for it in sums_of(part)][:MAX_SUMS]
    if kind is TensorDataset:
        return [it for tensor in dataset.tensors[:MAX_SUMS] for it in _sums_of_rows(tensor)][:MAX_SUMS]
    return []


def _sums_of_rows(tensor: torch.Tensor) -> list[float]:
    in_memory = tensor.layout is torch.strided and not tensor.is_meta
    if not (in_memory and tensor.is_floating_point() and len(tensor)):
        return []
    rows = sorted({(len(tensor) - 1) * row // (SUM_ROWS - 1) for row in range(SUM_ROWS)})
    return [float(tensor[row].detach().double().abs().sum()) for row in rows]


def _of_tensor(tensor: torch.Tensor) -> str:
    numbers = ""
    if tensor.layout is torch.strided and tensor.dtype in _WHOLE:
        numbers = str(tensor[:MAX_ROWS].flatten()[:MAX_ROWS].tolist())
    return f"{tensor.dtype} {tuple(tensor.shape)} {numbers}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else _digest(text)
