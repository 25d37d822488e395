"""The device that an option names."""

from __future__ import annotations

import pytest
import torch

from ps_wire.errors import PsError, UsageError
from ps_wire.process.device import device_of


@pytest.mark.parametrize("text", ["toaster", "meta:nowhere", "meta", "privateuseone"])
def test_a_device_that_is_not_here_is_named(text: str):
    with pytest.raises(UsageError, match=f"--device '{text}'") as caught:
        device_of(text)
    assert isinstance(caught.value, PsError)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_gpu_is_refused():
    with pytest.raises(UsageError, match="--device 'cuda'"):
        device_of("cuda")
