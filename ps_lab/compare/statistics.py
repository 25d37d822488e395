"""Statistics of paired runs: intervals, ratios, and a correction for many sentences.

Pure numbers. Runs are paired by seed: both of a pair had the same data order, the same start and the same
stragglers, so what they share cancels. Fewer than `LEAST_PAIRS` pairs give an effect and its range, no test.

Sources: the paired t interval, Student 1908; ratios on the log scale, so that 2 x and 0.5 x are as far from 1
and the mean is the geometric one, Fleming and Wallace 1986; Holm's step-down correction, Holm 1979; the
distribution of t by the regularized incomplete beta function, Abramowitz and Stegun 26.7.1, whose continued
fraction is DLMF 8.17.22, computed by Lentz's method as modified by Thompson and Barnett 1986.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_PAIRS = 5
CONFIDENCE = 0.95
_TINY = 1e-300
_STEPS = 500  # the fraction converges in some 50, also for thousands of degrees of freedom


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The difference between two groups of runs.

    Attributes:
        value: ratio of geometric means, or difference of means.
        low: with a test, of the 95 % interval; without one, the smallest of the pairs.
        high: likewise.
        pairs: that it is made of.
        p: of no effect, two-sided; None: too few pairs for a test.
    """

    value: float
    low: float
    high: float
    pairs: int
    p: float | None


def ratio(pairs: Sequence[tuple[float, float]]) -> Effect:
    """Of the first of each pair to the second, all > 0; at least one pair."""
    effect = _effect([math.log(one / other) for one, other in pairs])
    return Effect(
        value=math.exp(effect.value),
        low=math.exp(effect.low),
        high=math.exp(effect.high),
        pairs=effect.pairs,
        p=effect.p,
    )


def difference(pairs: Sequence[tuple[float, float]]) -> Effect:
    """The first of each pair less the second; at least one pair."""
    return _effect([one - other for one, other in pairs])


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and its 95 % interval; with fewer than `LEAST_PAIRS` values their range instead."""
    effect = _effect(list(values))
    return effect.value, effect.low, effect.high


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """The same, adjusted: all below a level together are wrong no more often than that level says."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def t_tail(t: float, degrees: float) -> float:
    """How likely |T| >= |t| is, of Student's distribution."""
    if math.isinf(t):
        return 0.0
    return _beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def t_quantile(confidence: float, degrees: float) -> float:
    """The t which |T| stays below with that probability."""
    low, high = 0.0, 1.0
    while t_tail(high, degrees) > 1 - confidence:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if t_tail(middle, degrees) > 1 - confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _effect(values: list[float]) -> Effect:
    count = len(values)
    mean = math.fsum(values) / count
    if count < LEAST_PAIRS:
        return Effect(value=mean, low=min(values), high=max(values), pairs=count, p=None)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    half = t_quantile(CONFIDENCE, count - 1) * error
    alike = error <= 1e-12 * abs(mean)  # but for rounding
    p = float(mean == 0) if alike else t_tail(mean / error, count - 1)
    return Effect(value=mean, low=mean - half, high=mean + half, pairs=count, p=p)


def _beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1.0 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    above, below = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1))
    result = below
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            below = 1.0 / _away(1.0 + term * below)
            above = _away(1.0 + term / above)
            change = above * below
            result *= change
        if abs(change - 1.0) < 1e-15:
            break
    return result


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
