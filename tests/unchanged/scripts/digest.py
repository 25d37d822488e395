"""Bytes as a hash and a size, of whatever a run comes to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

PLAIN = (
    *("step", "abstained", "dropped", "missed", "samples"),
    *("bytes_pushed", "bytes_pulled", "spread"),
)


def digest(values: torch.Tensor) -> dict[str, Any]:
    """A tensor's dtype, shape, size in bytes, and the hash of these bytes."""
    data = values.detach().cpu().contiguous()
    raw = data.reshape(-1).view(torch.uint8).numpy().tobytes()
    return {
        "dtype": str(data.dtype),
        "shape": list(data.shape),
        "bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
    }


def digests(value: Any) -> Any:
    """The same value with digests in place of tensors, as JSON has it."""
    if isinstance(value, torch.Tensor):
        return digest(value)
    if isinstance(value, Mapping):
        return {str(key): digests(it) for key, it in value.items()}
    if isinstance(value, list | tuple):
        return [digests(it) for it in value]
    if isinstance(value, float):
        return value.hex()
    return value if isinstance(value, str | int | bool | None) else repr(value)


def ledger(stats: Any) -> dict[str, Any]:
    """The figures of `Worker.stats` that are no times, nor hang on them."""
    plain = {name: getattr(stats, name) for name in PLAIN}
    epochs = {"epochs": [str(use) for use in stats.epochs]}
    return plain | dict(_fields("staleness", stats.staleness)) | epochs


def _fields(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    for name in value.__dataclass_fields__:
        yield f"{prefix}.{name}", digests(getattr(value, name))
