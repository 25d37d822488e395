"""The one gate: when a pull is answered, and whether pushes are averaged or applied one by one.

`docs/consistency.md` defines it. The same two parameters carry BSP, SSP and ASP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

from ps_wire.spec.consistency import ASP, BSP, SSP, Consistency


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The rule of a consistency model: when a pull is answered, and how pushes are applied.

    Attributes:
        aggregates: pushes of a step are held until the step closes, averaged and applied once (BSP);
            otherwise each is applied on arrival.
        staleness: the bound s; None is infinite.
        max_delay: a push whose version staleness is larger is dropped; None drops none.
        backup: so many workers of a step need not be waited for; 0: it closes with all (BSP).
    """

    aggregates: bool
    staleness: int | None
    max_delay: int | None = None
    backup: int = 0

    def limit(self, version: int, slowest: int) -> float:
        """The largest clock at which a pull may be answered.

        Args:
            version: of the partition.
            slowest: the smallest clock of all live members, the puller's included.
        """
        if self.aggregates:
            return version
        if self.staleness is None:
            return math.inf
        return slowest + self.staleness

    def opens(self, clock: int, version: int, slowest: int) -> bool:
        """Whether a pull at `clock`, the next step of the worker that pulls, may be answered: see `limit`."""
        return clock <= self.limit(version, slowest)


def gate_of(consistency: Consistency) -> Gate:
    """The gate of a consistency model."""
    match consistency:
        case BSP(backup):
            return Gate(aggregates=consistency.aggregates, staleness=0, backup=backup)
        case SSP(staleness):
            return Gate(aggregates=consistency.aggregates, staleness=staleness)
        case ASP(max_delay):
            return Gate(aggregates=consistency.aggregates, staleness=None, max_delay=max_delay)
        case _:
            assert_never(consistency)
