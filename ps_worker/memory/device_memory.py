"""The flat memory of a table on an accelerator, where ranks of a group reduce gradients and gather weights.

Beside it there is the memory on the host, of which a rank uses what it owns: that alone crosses. It must not
know ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ps_wire.spec.plan import Plan
from ps_worker.memory.flat import FlatBuckets
from ps_worker.memory.staging import Lane, Stagings


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The memory of one table on one device.

    Attributes:
        gradients: of this rank; nobody else writes there.
        weights: of all ranks' partitions, of one version.
        lane: for work on both, and for copies between them and the host.
    """

    gradients: FlatBuckets
    weights: FlatBuckets
    lane: Lane

    @classmethod
    def of(cls, plan: Plan, device: torch.device, stagings: Stagings) -> DeviceMemory:
        """Allocates zeros; `stagings` are those of the memory on the host."""
        return cls(
            gradients=FlatBuckets(plan, device=device),
            weights=FlatBuckets(plan, device=device),
            lane=stagings.lane(device),
        )
