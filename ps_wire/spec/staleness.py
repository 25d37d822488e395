"""Version staleness in three numbers. Pure.

tau = `v_apply - v_read` of one push on one partition (docs/consistency.md); the servers count how many pushes
were applied with each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ps_wire.spec.consistency import ASP, BSP, SSP, Consistency


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """A histogram of version staleness in short; all zero when nothing was applied.

    Attributes:
        pushes: how many, per partition.
        mean: in versions.
        p99: the smallest tau that at least 99 % of the pushes do not exceed.
        max: the largest.
    """

    pushes: int = 0
    mean: float = 0.0
    p99: int = 0
    max: int = 0


def bound(consistency: Consistency, num_workers: int) -> int | None:
    """The largest tau that a model allows, with constant members; None: it has no bound.

    SSP: of each other worker, at most 2s + 1 pushes come between reading and applying (law 6, from the bound
    on the clock gap of Ho et al., "More effective distributed ML via a stale synchronous parallel parameter
    server", NIPS 2013).
    """
    match consistency:
        case BSP():
            return 0
        case SSP(staleness):
            return (2 * staleness + 1) * (num_workers - 1)
        case ASP(max_delay):
            return max_delay


def merge_counts(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """One histogram of several, sorted by tau."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return dict(sorted(total.items()))


def summarize(counts: Mapping[int, int]) -> Staleness:
    """Mean, 99th percentile (nearest rank) and maximum of a histogram tau -> pushes."""
    pushes = sum(counts.values())
    if not pushes:
        return Staleness()
    present = sorted(tau for tau, count in counts.items() if count)
    rank = -(-pushes * 99 // 100)
    seen = 0
    p99 = present[-1]
    for tau in present:
        seen += counts[tau]
        if seen >= rank:
            p99 = tau
            break
    mean = sum(tau * count for tau, count in counts.items()) / pushes
    return Staleness(pushes=pushes, mean=mean, p99=p99, max=present[-1])
