"""Statistics of timed rounds, as values; times are in seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of one party.

    Attributes:
        seconds: from its first process's begin to its last one's end.
        cpu_s: of all its processes meanwhile; None where the system does not say.
    """

    seconds: float
    cpu_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Seconds per round, in short; the p90 is the nearest rank."""

    min: float
    median: float
    p90: float
    max: float

    def to_json(self) -> dict[str, float]:
        """An object with the four of them."""
        return asdict(self)


def summarize(rounds: Sequence[Round]) -> Summary:
    """The summary of at least one round."""
    ordered = sorted(item.seconds for item in rounds)
    return Summary(
        min=ordered[0],
        median=statistics.median(ordered),
        p90=ordered[math.ceil(0.9 * len(ordered)) - 1],
        max=ordered[-1],
    )


def cpu_s_per_gb(rounds: Sequence[Round], bytes_per_round: int) -> float | None:
    """CPU-seconds of all processes per 10^9 bytes; None where the system does not say."""
    if bytes_per_round == 0 or any(item.cpu_s is None for item in rounds):
        return None
    return sum(item.cpu_s or 0.0 for item in rounds) / (len(rounds) * bytes_per_round / 1e9)
