"""What rounding to a wire dtype may change: the bounds that docs/consistency.md states."""

from __future__ import annotations

import pytest
import torch

from ps_wire.frames.buffer import bytes_of
from ps_wire.spec.codec import AS_THEY_ARE, BF16, FP16, codec_for, travelling


def numbers(smallest: float, largest: float) -> torch.Tensor:
    """Of both signs, drawn evenly over the exponents."""
    generator = torch.Generator().manual_seed(0)
    low, high = torch.tensor([smallest, largest], dtype=torch.float64).log2()
    exponents = low + (high - low) * torch.rand(100_000, generator=generator, dtype=torch.float64)
    signs = torch.randint(0, 2, (100_000,), generator=generator) * 2 - 1
    return (signs * exponents.exp2()).float()


def change(values: torch.Tensor, codec: int) -> torch.Tensor:
    """How far each value is from what arrives."""
    return (values.to(travelling(codec, values.dtype)).double() - values.double()).abs()


@pytest.mark.parametrize(
    ("codec", "smallest", "largest", "part"),
    [(BF16, 1.2e-38, 3.3e38, 2**-8), (FP16, 6.2e-5, 65504.0, 2**-11)],
)
def test_a_number_changes_by_a_small_part_of_itself(codec: int, smallest: float, largest: float, part: float):
    values = numbers(smallest, largest)
    changed = change(values, codec)
    assert (changed <= part * values.double().abs()).all()
    assert (changed > part / 2 * values.double().abs()).any()  # the bound is no larger than it has to be


@pytest.mark.parametrize("wanted", [AS_THEY_ARE, BF16, FP16])
def test_only_float32_is_rounded(wanted: int):
    """float64 travels as it is, whatever is wanted, and no other codec is for it."""
    assert codec_for(wanted, torch.float32) == wanted
    assert codec_for(wanted, torch.float64) == AS_THEY_ARE
    assert travelling(AS_THEY_ARE, torch.float64) is torch.float64
    assert travelling(BF16, torch.float64) is travelling(FP16, torch.float64) is None


def test_below_its_normal_range_fp16_is_off_by_3e_8():
    assert change(numbers(1e-12, 6.1e-5), FP16).max() <= 2**-25


def test_bytes_are_those_of_the_elements():
    assert bytes(bytes_of(torch.tensor([1.0, -2.0], dtype=torch.bfloat16))) == b"\x80\x3f\x00\xc0"
