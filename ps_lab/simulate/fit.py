"""Costs from recorded runs, and how near a simulation with them comes to a run. Pure.

What is fitted, and from what:
    compute   each worker's own recorded times, of which a simulation draws: no distribution is assumed
    link      the rest of a step, push and pull without the gate, is A + B x bytes: least squares over the
              medians of each payload; of one payload alone, all of it is A

What cannot be told apart: a shard's time for a push is in A and B, and so are workers that hold each other up
on the same cores. So a fit is good for runs of about as many workers on the same machines, and all else is an
extrapolation. Recorded compute times have the stragglers of their run in them: these are not added again.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ps_lab.compare.results import Recording
from ps_lab.simulate.costs import Costs
from ps_lab.simulate.engine import SimulatedRun
from ps_wire.errors import UsageError

WARM_UP = 0.05  # of an incarnation's steps, at least one: first steps compile and allocate, and are left out
MAX_SAMPLES = 1000  # of a worker's compute times
MAX_RATIO = 0.10  # of a throughput's error: what a valid simulation may be off by
MAX_DISTANCE = 0.10  # of N - 1, or half an update: what its staleness may be off by (Wasserstein)
LEAST_DISTANCE = 0.5


def fit(runs: Iterable[Recording]) -> Costs:
    """The costs of recorded runs, of one number of workers.

    Raises:
        UsageError: too few steps were recorded.
    """
    compute: dict[int, list[float]] = defaultdict(list)
    overhead: dict[int, list[float]] = defaultdict(list)  # by bytes, up and down together
    for run in runs:
        for step in run.steps[max(1, int(len(run.steps) * WARM_UP)) :]:
            compute[run.header.worker].append(step.compute_s)
            overhead[step.bytes_up + step.bytes_down].append(step.push_s + step.pull_s)
    if not compute:
        raise UsageError("costs cannot be fitted: two steps of a worker at least must be recorded")
    base_s, per_byte_s = _line({size: statistics.median(found) for size, found in overhead.items()})
    return Costs(
        compute_s=tuple(_spread(compute[worker]) for worker in sorted(compute)),
        num_bytes=max(overhead) // 2,
        latency_s=base_s / 2,
        worker_bytes_per_s=1.0 / per_byte_s if per_byte_s > 0.0 else math.inf,
    )


def _line(medians: Mapping[int, float]) -> tuple[float, float]:
    """A and B >= 0 of A + B x bytes, by least squares."""
    sizes, values = list(medians), list(medians.values())
    if len(sizes) < 2:
        return values[0], 0.0
    slope, intercept = statistics.linear_regression(sizes, values)
    if slope <= 0.0:
        return statistics.median(values), 0.0
    if intercept < 0.0:  # through zero
        return 0.0, statistics.linear_regression(sizes, values, proportional=True).slope
    return intercept, slope


def _spread(values: Sequence[float]) -> tuple[float, ...]:
    """At most `MAX_SAMPLES` of them, evenly over their order in size."""
    ordered = sorted(values)
    if len(ordered) <= MAX_SAMPLES:
        return tuple(ordered)
    return tuple(ordered[(2 * index + 1) * len(ordered) // (2 * MAX_SAMPLES)] for index in range(MAX_SAMPLES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """How near a simulation came.

    Attributes:
        real_steps_per_s: of all workers.
        simulated_steps_per_s: of all workers.
        total_variation: of the distributions of tau: the share of pushes that would have to have another one.
        wasserstein: by how many updates tau is moved on average, from one distribution to the other.
        num_workers: of both.
    """

    real_steps_per_s: float
    simulated_steps_per_s: float
    total_variation: float
    wasserstein: float
    num_workers: int

    @property
    def ratio(self) -> float:
        """Simulated throughput, real = 1."""
        return self.simulated_steps_per_s / self.real_steps_per_s

    @property
    def holds(self) -> bool:
        """Throughput within 10 %; staleness within 10 % of N - 1, or half an update."""
        most = max(LEAST_DISTANCE, MAX_DISTANCE * (self.num_workers - 1))
        return abs(self.ratio - 1.0) <= MAX_RATIO and self.wasserstein <= most


def validate(real: Sequence[Recording], simulated: SimulatedRun) -> Validation:
    """A recorded run beside a simulated one, of as many workers.

    Raises:
        UsageError: they are not of the same model and number of workers, or nothing was recorded.
    """
    setup = simulated.setup
    for run in real:
        there = f"{run.header.num_workers} workers under {run.header.consistency}"
        here = f"{setup.num_workers} workers under {setup.consistency}"
        if there != here:
            raise UsageError(f"a run of {there} is not compared with one of {here}")
    steps = [(run.header.unix_s, step) for run in real for step in run.steps[1:]]
    begun_s = min((unix_s + step.started_s for unix_s, step in steps), default=0.0)
    ended_s = max((unix_s + step.ended_s for unix_s, step in steps), default=0.0)
    if begun_s >= ended_s:
        raise UsageError("nothing was recorded that a simulation could be compared with")
    found = Counter(step.tau for _, step in steps if step.tau is not None)
    tau = simulated.steps.whole("tau")
    total_variation, wasserstein = distances(found, Counter(tau[tau >= 0].tolist()))
    return Validation(
        real_steps_per_s=len(steps) / (ended_s - begun_s),
        simulated_steps_per_s=simulated.steps_per_s,
        total_variation=total_variation,
        wasserstein=wasserstein,
        num_workers=setup.num_workers,
    )


def distances(one: Mapping[int, int], other: Mapping[int, int]) -> tuple[float, float]:
    """Total variation and Wasserstein-1 distance of two histograms over whole numbers.

    Source: for distributions on a line the latter is the area between their distribution functions:
    Vallender, "Calculation of the Wasserstein distance between probability distributions on the line", 1974.
    """
    if not one or not other:
        return (0.0, 0.0) if not one and not other else (1.0, math.inf)
    shares = [{tau: count / sum(it.values()) for tau, count in it.items()} for it in (one, other)]
    present = sorted({*one, *other})
    gap = variation = area = 0.0
    for tau, following in zip(present, [*present[1:], present[-1]], strict=True):
        difference = shares[0].get(tau, 0.0) - shares[1].get(tau, 0.0)
        variation += abs(difference) / 2
        gap += difference
        area += abs(gap) * (following - tau)
    return variation, area
