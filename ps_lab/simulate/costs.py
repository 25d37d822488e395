"""Costs of a step, in seconds: the only knowledge of real machines that a simulation has. Pure values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ps_wire.errors import UsageError
from ps_wire.spec.stragglers import uniform

_STREAM = 1 << 20  # of draws: none that a part of a straggler profile has
_NAMES = ("exchange_s", "latency_s", "take_s_per_byte", "apply_s_per_byte", "control_s", "lease_s", "cores")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link of its own that some workers have.

    Attributes:
        workers: who; empty: all.
        bytes_per_s: in each direction.
        latency_s: one way, beside that of all.
    """

    workers: tuple[int, ...]
    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0.0 or not 0.0 <= self.latency_s < math.inf:
            raise UsageError(
                "simulate: a link needs bytes_per_s > 0 and latency_s >= 0, got "
                f"{self.bytes_per_s:g} and {self.latency_s:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of one step of one worker.

    A push reaches its shard `latency_s` after the links of both, at the same time, have carried it, and each
    carries one frame after the other; weights come back the same way. A shard works on one push
    at a time, in the order in which they arrive.

    Attributes:
        compute_s: of worker w those at `w % len(compute_s)`, of which each step draws one; with `cores` it is
            time of a core.
        exchange_s: a worker's time of a core to send and to receive, which no straggler makes longer; with
            `cores` alone.
        num_bytes: of the table's gradients, and of its weights.
        latency_s: one way, of a frame without payload.
        worker_bytes_per_s: of a worker's link, in each direction; infinite: takes no time.
        links: of workers that have another one; the first that is a worker's counts.
        server_bytes_per_s: of a shard's link, in each direction; infinite: takes no time.
        take_s_per_byte: a shard's time for each push: reading, checking, adding to a sum.
        apply_s_per_byte: a shard's time for each optimizer step.
        service_share: of these times, what holds up a push or an answer; the rest is of threads beside. With
            `cores` alone, from 0 to 1.
        control_s: one way, of a message between a shard and the coordinator.
        lease_s: a worker that is silent for so long is evicted.
        cores: that workers and shards share; 0: each has one of its own.
    """

    compute_s: tuple[tuple[float, ...], ...] = ((0.05,),)
    exchange_s: float = 0.0
    num_bytes: int = 0
    latency_s: float = 0.0
    worker_bytes_per_s: float = math.inf
    links: tuple[Link, ...] = ()
    server_bytes_per_s: float = math.inf
    take_s_per_byte: float = 0.0
    apply_s_per_byte: float = 0.0
    service_share: float = 1.0
    control_s: float = 0.0
    lease_s: float = 10.0
    cores: float = 0.0

    def __post_init__(self) -> None:
        _check_compute(self.compute_s)
        for name in _NAMES:
            if not 0.0 <= (value := getattr(self, name)) < math.inf:
                raise UsageError(f"simulate: {name} must be >= 0 and finite, got {value:g}")
        if not 0.0 <= self.service_share <= 1.0:
            raise UsageError(f"simulate: service_share must be from 0 to 1, got {self.service_share:g}")
        for name in ("worker_bytes_per_s", "server_bytes_per_s"):
            if not (value := getattr(self, name)) > 0.0:
                raise UsageError(f"simulate: {name} must be > 0, got {value:g}")
        if self.num_bytes < 0:
            raise UsageError(f"simulate: num_bytes must be >= 0, got {self.num_bytes}")

    def link_of(self, worker: int) -> Link:
        """The worker's own link."""
        own = (link for link in self.links if not link.workers or worker in link.workers)
        return next(own, Link(workers=(worker,), bytes_per_s=self.worker_bytes_per_s))

    def compute_of(self, worker: int, step: int, seed: int) -> float:
        """Seconds of the worker's compute in this step, without stragglers."""
        own = self.compute_s[worker % len(self.compute_s)]
        if len(own) == 1:
            return own[0]
        return own[int(uniform(seed, _STREAM, worker, step) * len(own))]


def _check_compute(compute_s: tuple[tuple[float, ...], ...]) -> None:
    if not compute_s or not all(compute_s):
        raise UsageError("simulate: compute_s needs one duration at least for each worker it names")
    for own in compute_s:
        for seconds in own:
            if not 0.0 <= seconds < math.inf:
                raise UsageError(f"simulate: compute_s must be >= 0 and finite, got {seconds:g}")
