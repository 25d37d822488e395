"""Figures of one worker, and of the pushes that the shards applied for its job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Version staleness tau of the job's pushes, per push and partition: updates between read and apply.

    Attributes:
        pushes: how many were counted.
        mean: of tau.
        p99: the smallest tau that 99 % do not exceed.
        max: the largest.
    """

    pushes: int = 0
    mean: float = 0.0
    p99: int = 0
    max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What `Worker.stats` returns.

    Attributes:
        step: steps that this worker has taken, over its tables the largest.
        samples: that its loader has handed out.
        bytes_pushed: payload of its pushes.
        bytes_pulled: payload of the weights that it got.
        waited_s: seconds in `step()` between the last push and the last weight.
        gate_wait_s: the part of it at the gate, as the shards measured it.
        max_gap: the largest clock gap that one of its pushes made.
        spread: newest minus oldest version over partitions, in its last pull.
        staleness: of the whole job.
    """

    step: int
    samples: int
    bytes_pushed: int
    bytes_pulled: int
    waited_s: float
    gate_wait_s: float
    max_gap: int
    spread: int
    staleness: Staleness


def summarize(histogram: Mapping[int, int]) -> Staleness:
    """A histogram tau -> pushes as its mean, 99th percentile (nearest rank) and maximum."""
    pushes = sum(histogram.values())
    if not pushes:
        return Staleness()
    rank, seen, p99 = -(-99 * pushes // 100), 0, 0
    for tau in sorted(histogram):
        seen += histogram[tau]
        if seen >= rank:
            p99 = tau
            break
    mean = sum(tau * count for tau, count in histogram.items()) / pushes
    return Staleness(pushes=pushes, mean=mean, p99=p99, max=max(histogram))
