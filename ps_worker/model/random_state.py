"""The random generators that a script draws from without naming them: torch's, Python's, numpy's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


class RandomState:
    """All of them, as something that can be registered; what is set counts from `apply` on."""

    def __init__(self) -> None:
        self._waiting: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Of this process, by the thread that calls it."""
        kind, keys, *rest = np.random.get_state(legacy=True)
        states: dict[str, Any] = {
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": [kind, keys.tolist(), *rest],  # type: ignore[union-attr]
        }
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            states["cuda"] = torch.cuda.get_rng_state_all()
        return states

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Keeps them for `apply`."""
        self._waiting = states

    def apply(self) -> None:
        """Sets what is kept, once."""
        states, self._waiting = self._waiting, None
        if states is None:
            return
        torch.set_rng_state(states["torch"])
        random.setstate(states["python"])
        np.random.set_state(tuple(states["numpy"]))
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(states["cuda"][: torch.cuda.device_count()])
