"""A table of a model's parameters that has started, as an optimizer gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ps_worker.exchange.exchange import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedTable:
    """A table of a model's parameters that has started.

    Attributes:
        number: of the table.
        exchange: with the job's weights.
        parameters: by name, in the order of the table.
        step: this worker's first.
    """

    number: int
    exchange: Exchange
    parameters: Mapping[str, torch.nn.Parameter]
    step: int
