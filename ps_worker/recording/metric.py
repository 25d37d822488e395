"""A value that a script logs, as the number that travels."""

from __future__ import annotations

import numpy as np
import torch

from ps_wire.errors import UsageError

_ARRAYS = (torch.Tensor, np.ndarray)


def name_of(name: str) -> str:
    """The name.

    Raises:
        UsageError: it cannot travel, since it is no Unicode text.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"log() takes names of Unicode text, got {name!a}") from None
    return name


def number_of(name: str, value: object, call: str = "log") -> float:
    """The number; of a tensor or array of one element, read without its graph. `call` is named in the error.

    Raises:
        UsageError: it is none; the metric is named.
    """
    try:
        return float(value.item() if isinstance(value, _ARRAYS) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise UsageError(f"{call}({name}=...) takes a number, got {_described(value)}") from None


def _described(value: object) -> str:
    if isinstance(value, _ARRAYS):
        return f"{type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}"
    return "an int out of range" if isinstance(value, int) else repr(value)[:200]
