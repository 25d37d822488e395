"""Figures of one worker, and of the pushes that the shards applied for its job."""

from __future__ import annotations

from dataclasses import dataclass

from ps_wire.staleness import Staleness


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
        staleness: version staleness of the whole job's pushes, per push and partition.
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
