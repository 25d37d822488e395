"""The encoding of a payload's elements: the `codec` byte of a frame, and the dtype that it stands for.

Legend: a partition's dtype is that of its weights on the server.
"""

from __future__ import annotations

import torch

from ps_wire.spec.wire_dtype import WireDtype

AS_THEY_ARE, BF16, FP16 = 0, 1, 2  # on the wire: never used again for something else
NOTHING = 255  # of a PULL: no weights are sent, only that its gate has opened
CODECS = {WireDtype.FP32: AS_THEY_ARE, WireDtype.BF16: BF16, WireDtype.FP16: FP16}
_ROUNDED = {BF16: torch.bfloat16, FP16: torch.float16}


def known(codec: int) -> bool:
    """Whether this version knows the codec."""
    return codec in (AS_THEY_ARE, NOTHING) or codec in _ROUNDED


def codec_for(codec: int, dtype: torch.dtype) -> int:
    """The codec of a partition of this dtype where `codec` is wanted: the same, or `AS_THEY_ARE`."""
    return codec if dtype is torch.float32 or codec == NOTHING else AS_THEY_ARE


def travelling(codec: int, dtype: torch.dtype) -> torch.dtype | None:
    """The dtype of a payload's elements, of a partition of this dtype; None: the codec is not for it."""
    if codec == AS_THEY_ARE:
        return dtype
    return _ROUNDED.get(codec) if dtype is torch.float32 else None
