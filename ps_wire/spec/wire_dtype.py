"""The dtype in which gradients and weights travel, as a person types it.

Tables are float32 or float64. With a 16-bit wire dtype the float32 ones travel rounded, to the nearest and
ties to even; the others travel as they are. This file knows the names; `codec` knows what frames say.
"""

from __future__ import annotations

from enum import StrEnum

from ps_wire.spec.choice import choose


class WireDtype(StrEnum):
    """A choice of the worker."""

    FP32 = "fp32"  # as they are
    BF16 = "bf16"  # 8 bits of precision, the range of float32
    FP16 = "fp16"  # 11 bits of precision; nothing beyond 65504


VALID = ", ".join(WireDtype)


def parse(text: str) -> WireDtype:
    """The choice that `text` names; else raises `UsageError`."""
    return choose(WireDtype, text, "wire_dtype")
