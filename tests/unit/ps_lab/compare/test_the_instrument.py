"""Checks on the instrument: where nothing differs nothing is found, and what differs is."""

from __future__ import annotations

import random

import pytest

from ps_lab.compare.sentences import LEVEL
from ps_lab.compare.statistics import Effect, ratio
from ps_lab.simulate.costs import Costs
from ps_lab.simulate.engine import Setup, Simulation
from ps_wire.spec import consistency, stragglers

SEEDS = 5
REPEATS = 20
STRAGGLERS = "transient:p=0.1,f=4"


def took_s(model: str, seed: int, noise: int, straggler: str = STRAGGLERS) -> float:
    """Of a run with the stragglers of a seed, and compute times that are drawn by `noise`."""
    draw = random.Random(noise)
    times = tuple(sorted(0.05 * draw.lognormvariate(0.0, 0.3) for _ in range(50)))
    profile = stragglers.parse(f"{straggler};seed={seed}")
    setup = Setup(
        consistency=consistency.parse(model),
        num_workers=4,
        num_steps=60,
        costs=Costs(compute_s=(times,)),
        stragglers=profile,
        seed=noise,
    )
    return Simulation(setup).run().duration_s


def compared(one: str, other: str, repeat: int, straggler: str = STRAGGLERS) -> Effect:
    """Two models with five seeds each, paired as a report pairs them."""
    noises = range(10 * repeat * SEEDS, 10 * (repeat + 1) * SEEDS)
    return ratio(
        [
            (
                took_s(one, seed, noises[2 * seed], straggler),
                took_s(other, seed, noises[2 * seed + 1], straggler),
            )
            for seed in range(SEEDS)
        ]
    )


@pytest.mark.parametrize("model", ["bsp", "asp"])
def test_a_model_does_not_differ_from_itself(model: str):
    """A/A: of 20 comparisons at a level of 5 % at most 4 are wrong (that more are has a chance of 0.3 %)."""
    found = [compared(model, model, repeat) for repeat in range(REPEATS)]
    assert sum(effect.p < LEVEL for effect in found) <= 4
    assert sum(effect.low <= 1 <= effect.high for effect in found) >= REPEATS - 4


@pytest.mark.parametrize(
    ("one", "straggler", "least", "most"),
    [
        pytest.param("ssp:3", STRAGGLERS, 0.4, 0.85, id="ssp helps against transient stragglers"),
        pytest.param("asp", "constant:f=4,worker=0", 0.9, 1.1, id="the slowest ends last, whoever waits"),
    ],
)
def test_a_planted_effect_is_found_as_large_as_it_is(one: str, straggler: str, least: float, most: float):
    found = [compared(one, "bsp", repeat, straggler) for repeat in range(5)]
    assert all(least < effect.value < most for effect in found)
    if most < 1:
        assert all(effect.p < LEVEL for effect in found)
