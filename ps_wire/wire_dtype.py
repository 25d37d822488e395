"""The dtype in which gradients and weights travel, as a person types it and as frames say it.

Tables are float32 or float64. With a 16-bit wire dtype the float32 ones travel rounded, to the nearest and
ties to even; the others travel as they are. This file knows the names and the codecs, not who rounds.
"""

from __future__ import annotations

from enum import StrEnum

import torch

from ps_wire.errors import UsageError


class WireDtype(StrEnum):
    """A choice of the worker."""

    FP32 = "fp32"  # as they are
    BF16 = "bf16"  # 8 bits of precision, the range of float32
    FP16 = "fp16"  # 11 bits of precision; nothing beyond 65504

    @property
    def codec(self) -> int:
        """Its number in frames: never used again for something else."""
        return _CODECS[self]


AS_THEY_ARE = 0
_CODECS = {WireDtype.FP32: AS_THEY_ARE, WireDtype.BF16: 1, WireDtype.FP16: 2}
_ROUNDED = {1: torch.bfloat16, 2: torch.float16}
VALID = ", ".join(WireDtype)


def parse(text: str) -> WireDtype:
    """The choice that `text` names.

    Raises:
        UsageError: it names none; the valid ones are listed.
    """
    try:
        return WireDtype(text.strip())
    except ValueError:
        raise UsageError(f"unknown wire_dtype {text!r}; valid are: {VALID}", spec=text) from None


def known(codec: int) -> bool:
    """Whether this version knows the codec."""
    return codec == AS_THEY_ARE or codec in _ROUNDED


def codec_for(codec: int, dtype: torch.dtype) -> int:
    """The codec of a partition of this dtype where `codec` is wanted: the same, or `AS_THEY_ARE`."""
    return codec if dtype is torch.float32 else AS_THEY_ARE


def travelling(codec: int, dtype: torch.dtype) -> torch.dtype | None:
    """What the elements of a payload are, of a partition of this dtype; None: the codec is not for it."""
    if codec == AS_THEY_ARE:
        return dtype
    return _ROUNDED.get(codec) if dtype is torch.float32 else None


def bytes_of(rounded: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor of a 16-bit dtype, without a copy; numpy has no bfloat16."""
    return rounded.view(torch.int16).numpy().data.cast("B")
