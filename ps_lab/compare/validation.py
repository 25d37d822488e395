"""How near simulated runs came to measured ones: throughput, and the distribution of tau."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ps_lab.compare.comparison import Arm, Comparison
from ps_lab.compare.metrics import RunFigures
from ps_lab.compare.results import Recording

MAX_RATIO = 0.10  # of a throughput's error: what a valid simulation may be off by
MAX_DISTANCE = 0.10  # of N - 1, or half an update: what its staleness may be off by (Wasserstein)
LEAST_DISTANCE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The difference of a simulation from what was measured.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """A model under a profile, simulated, and measured where it was.

    Attributes:
        arm: of the simulated runs.
        ratios: of throughput, simulated / measured, by seed.
        found: over all seeds; None: there is no measured run, and the simulation is an extrapolation.
    """

    arm: Arm
    ratios: Mapping[int, float]
    found: Validation | None


def validated(simulated: Comparison, measured: Comparison) -> tuple[Validated, ...]:
    """Each simulated model that has ended in some run, beside the measured one at the same learning rate."""
    return tuple(
        _beside(arm, measured)
        for entry in simulated.entries.values()
        for arm in entry.arms
        if any(_steps_per_s(one) for one in arm.figures)
    )


def _beside(arm: Arm, measured: Comparison) -> Validated:
    entry = measured.entries.get((arm.model, arm.profile, arm.workers))
    real = next((it for it in entry.arms if it.lr == arm.lr), None) if entry is not None else None
    mine = arm.by_seed(_steps_per_s)
    theirs = {} if real is None else real.by_seed(lambda one: None if one.data.failed else _steps_per_s(one))
    ratios = {seed: mine[seed] / theirs[seed] for seed in mine if theirs.get(seed)}
    if real is None or not ratios:
        return Validated(arm=arm, ratios={}, found=None)
    total_variation, wasserstein = distances(_taus(real.figures), _taus(arm.figures))
    return Validated(
        arm=arm,
        ratios=ratios,
        found=Validation(
            real_steps_per_s=_geometric([theirs[seed] for seed in ratios]),
            simulated_steps_per_s=_geometric([mine[seed] for seed in ratios]),
            total_variation=total_variation,
            wasserstein=wasserstein,
            num_workers=arm.workers,
        ),
    )


def _steps_per_s(one: RunFigures) -> float | None:
    took_s = settled_s(one.recorded)
    return sum(len(it.steps[1:]) for it in one.recorded) / took_s if took_s > 0.0 else None


def settled_s(recordings: Sequence[Recording]) -> float:
    """How long workers of two steps and more took from the second on, in seconds; 0 where there are none.

    A first step imports and compiles: that is in no costs, and in no simulation.
    """
    settled = [one for one in recordings if len(one.steps) > 1]
    if not settled:
        return 0.0
    ended_s = max(float(one.ended_unix_s[-1]) for one in settled)
    return ended_s - min(float(one.started_unix_s[1]) for one in settled)


def _geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _taus(figures: Sequence[RunFigures]) -> Counter[int]:
    found: Counter[int] = Counter()
    for one in figures:
        known = one.column("tau")
        found.update(known[np.isfinite(known)].astype(int).tolist())
    return found


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
