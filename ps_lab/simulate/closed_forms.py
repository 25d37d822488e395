"""Closed forms of what theory says of a run, to be set beside what was simulated, or measured.

Times are those of compute alone: links, shards and messages are taken to cost nothing. Pure.
"""

from __future__ import annotations

import math

from ps_wire.spec.consistency import ASP, BSP, Consistency
from ps_wire.spec.stragglers import Bursty, Constant, Exponential, Straggler, StragglerProfile, Transient


def harmonic(number: int) -> float:
    """1 + 1/2 + ... + 1/number."""
    return math.fsum(1.0 / index for index in range(1, number + 1))


def ordered_factor(straggler: Straggler, num_workers: int, rank: int) -> float | None:
    """Expected factor of the `rank`-th fastest of `num_workers` that begin a step together; None: not known.

    Transient, bursty: it is f where fewer than `rank` workers are as ever, a binomial number, else 1.
    Exponential: the k-th smallest of n exponential times of mean m has the mean m (H_n - H_(n-k)): Renyi, "On
    the theory of order statistics", Acta Mathematica Hungarica 4, 1953. With k = n this is the step of BSP:
    Lee et al., "Speeding up distributed machine learning using codes", IEEE Transactions on Information
    Theory 64(3), 2018. With k = n - B it is the step of n workers of which B are backups: Chen et al.,
    "Revisiting distributed synchronous SGD", 2016.
    """
    match straggler:
        case Transient() | Bursty() if not straggler.workers:
            fast = 1.0 - straggler.probability
            enough = math.fsum(
                math.comb(num_workers, number) * fast**number * (1.0 - fast) ** (num_workers - number)
                for number in range(rank, num_workers + 1)
            )
            return straggler.factor - (straggler.factor - 1.0) * enough
        case Exponential() if not straggler.workers:
            return 1.0 + straggler.mean * (harmonic(num_workers) - harmonic(num_workers - rank))
        case Constant():
            named = straggler.workers or range(num_workers)
            slow = sum(worker < num_workers for worker in named)
            return straggler.factor if rank > num_workers - slow else 1.0
        case _:
            return None


def mean_factor(straggler: Straggler) -> float | None:
    """Expected factor of one worker's step, where all are alike; None: they are not, or it is not known."""
    match straggler:
        case Transient() | Bursty() if not straggler.workers:
            return 1.0 + straggler.probability * (straggler.factor - 1.0)
        case Exponential() if not straggler.workers:
            return 1.0 + straggler.mean
        case Constant() if not straggler.workers:
            return straggler.factor
        case _:
            return None


def step_s(
    consistency: Consistency, profile: StragglerProfile, num_workers: int, compute_s: float
) -> float | None:
    """Expected time of a step; None where no formula is known.

    BSP goes as fast as the slowest worker of each step, ASP as the mean one. Of SSP with s > 0, and of backup
    workers beyond the first step (who is late does not begin the next one with the others), none is known.
    """
    if len(profile.parts) > 1:
        return None
    if not profile.parts:
        return compute_s
    match consistency:
        case BSP(backup=0):
            factor = ordered_factor(profile.parts[0], num_workers, num_workers)
        case ASP():
            factor = mean_factor(profile.parts[0])
        case _:
            return None
    return None if factor is None else factor * compute_s


def mean_tau(num_workers: int) -> int:
    """Mean version staleness under ASP without drops, over a long run: N - 1, whatever the speeds (law 10).

    Zhang et al., "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016, measured it for equal
    workers.
    """
    return num_workers - 1
