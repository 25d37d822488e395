"""The device that an option names. It must not know what runs there."""

from __future__ import annotations

import torch

from ps_wire.errors import UsageError


def device_of(text: str) -> torch.device:
    """The device of `--device`.

    Raises:
        UsageError: torch knows no such device, or has none here.
    """
    try:
        device = torch.device(text)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"--device {text!r}: torch cannot use it here: {reason}") from None
    if device.type == "meta":
        raise UsageError(f"--device {text!r}: nothing has values there")
    return device
