"""The simulator beside theory: what is known in closed form comes out, within 5 %."""

from __future__ import annotations

import math
import statistics

import pytest

from ps_lab.simulate.closed_forms import (
    harmonic,
    mean_factor,
    mean_tau,
    ordered_factor,
    step_s,
)
from ps_lab.simulate.costs import Costs
from ps_lab.simulate.engine import Setup, SimulatedRun, Simulation
from ps_wire.spec import consistency, stragglers
from ps_wire.spec.staleness import bound as staleness_bound

COMPUTE_S = 0.05


def simulated(model: str, straggler: str, num_workers: int = 8, **setup) -> SimulatedRun:
    setup = {"num_steps": 2000, "costs": Costs(compute_s=((COMPUTE_S,),))} | setup
    return Simulation(
        Setup(
            consistency=consistency.parse(model),
            num_workers=num_workers,
            stragglers=stragglers.parse(straggler),
            **setup,
        )
    ).run()


def test_harmonic_numbers():
    """H_1 = 1, H_4 = 25 / 12, and H_n is about ln n + Euler's constant."""
    assert harmonic(0) == 0.0
    assert harmonic(1) == 1.0
    assert harmonic(4) == pytest.approx(25 / 12)
    assert harmonic(10_000) == pytest.approx(math.log(10_000) + 0.5772156649, rel=1e-5)


def test_formulas_by_hand():
    """Cases that are easy: one of two is slow, nobody may be, everybody is."""
    half = stragglers.Transient(probability=0.5, factor=3.0)
    assert ordered_factor(half, 2, 2) == pytest.approx(0.25 * 1 + 0.75 * 3)
    assert ordered_factor(half, 2, 1) == pytest.approx(0.75 * 1 + 0.25 * 3)
    slow = stragglers.Constant(factor=4.0)
    assert [ordered_factor(slow, 3, rank) for rank in (1, 2, 3)] == [1.0, 1.0, 4.0]
    exponential = stragglers.Exponential(mean=0.5)
    assert ordered_factor(exponential, 2, 1) == pytest.approx(1 + 0.5 / 2)
    assert ordered_factor(exponential, 2, 2) == pytest.approx(1 + 0.5 * 1.5)
    assert mean_factor(exponential) == 1.5
    assert mean_factor(half) == 2.0


def test_who_is_not_there_is_not_slow():
    profile = stragglers.parse("constant:f=4,worker=1+9")
    assert step_s(consistency.parse("bsp"), profile, 4, 1.0) == 4.0
    assert step_s(consistency.parse("bsp"), profile, 1, 1.0) == 1.0


def test_where_nothing_is_known_nothing_is_said():
    """No formula is better than a wrong one."""
    known = stragglers.parse("transient:p=0.1,f=4")
    assert step_s(consistency.parse("ssp:3"), known, 4, 1.0) is None
    assert step_s(consistency.parse("bsp:backup=1"), known, 4, 1.0) is None
    several = stragglers.parse("transient:p=0.1,f=4;constant:f=2")
    assert step_s(consistency.parse("bsp"), several, 4, 1.0) is None
    some = stragglers.parse("transient:p=0.1,f=4,worker=0+1")
    assert step_s(consistency.parse("bsp"), some, 4, 1.0) is None
    assert step_s(consistency.parse("asp"), stragglers.parse("pause:step=1,s=1"), 4, 1.0) is None
    assert step_s(consistency.parse("ssp:3"), stragglers.parse("none"), 4, 1.0) == 1.0


@pytest.mark.parametrize("num_workers", [2, 8, 32])
@pytest.mark.parametrize(
    "straggler",
    [
        "none",
        "constant:f=4",
        "transient:p=0.1,f=4;seed=1",
        "transient:p=0.5,f=2;seed=2",
        "exponential:mean=1;seed=3",
        "bursty:p=0.1,length=5,f=4;seed=4",
    ],
)
def test_a_step_of_bsp_takes_as_long_as_its_slowest_worker(straggler, num_workers):
    """Order statistics: the expected maximum of N."""
    steps = 2000 if num_workers < 32 else 400
    outcome = simulated("bsp", straggler, num_workers, num_steps=steps)
    expected_s = step_s(consistency.parse("bsp"), stragglers.parse(straggler), num_workers, COMPUTE_S)
    assert outcome.duration_s / steps == pytest.approx(expected_s, rel=0.05)


@pytest.mark.parametrize(
    "straggler",
    ["transient:p=0.1,f=4;seed=1", "exponential:mean=1;seed=3", "bursty:p=0.1,length=5,f=4;seed=4"],
)
def test_a_step_of_asp_takes_as_long_as_the_mean_one(straggler):
    """Nobody waits for anybody."""
    outcome = simulated("asp", straggler, num_steps=None, limit_s=100.0)
    expected_s = step_s(consistency.parse("asp"), stragglers.parse(straggler), 8, COMPUTE_S)
    assert 8 / outcome.steps_per_s == pytest.approx(expected_s, rel=0.05)


@pytest.mark.parametrize("backup", [1, 3])
@pytest.mark.parametrize("straggler", ["transient:p=0.3,f=4", "exponential:mean=1"])
def test_a_first_step_with_backup_workers_is_an_order_statistic(straggler, backup):
    """It closes with the (N - B)-th of N workers: the mean over 600 seeds of the moment of version 1."""
    found_s = []
    for seed in range(600):
        outcome = simulated(f"bsp:backup={backup}", f"{straggler};seed={seed}", 6, num_steps=1)
        found_s.append(float(outcome.steps.seconds("ended_s").min()))
    expected = ordered_factor(stragglers.parse(straggler).parts[0], 6, 6 - backup)
    assert statistics.fmean(found_s) == pytest.approx(expected * COMPUTE_S, rel=0.05)


@pytest.mark.parametrize("num_workers", [2, 5, 16])
def test_the_mean_staleness_of_asp_is_that_of_all_others(num_workers):
    """N - 1, with equal workers, and with others over a long run."""
    for straggler in ("none", "transient:p=0.1,f=4"):
        outcome = simulated("asp", straggler, num_workers, num_steps=500)
        mean = sum(tau * count for tau, count in outcome.tau.items()) / outcome.tau.total()
        assert mean == pytest.approx(mean_tau(num_workers), rel=0.05)


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("straggler", ["none", "transient:p=0.2,f=9", "constant:f=20"])
def test_law_6_the_staleness_of_ssp_is_bounded(staleness, straggler):
    """No tau above (2s + 1)(N - 1), and no gap above s + 1; one worker comes near the first."""
    outcome = simulated(f"ssp:{staleness}", straggler, 5)
    bound = staleness_bound(consistency.parse(f"ssp:{staleness}"), 5)
    assert bound == (2 * staleness + 1) * 4
    assert max(outcome.tau) <= bound
    assert outcome.steps.whole("gap").max() <= staleness + 1


def test_bounds_of_the_other_models():
    """None under bsp, under asp what it is given."""
    assert set(simulated("bsp", "transient:p=0.2,f=9").tau) == {0}
    assert max(simulated("asp:max_delay=4", "transient:p=0.2,f=9").tau) == 4


@pytest.mark.parametrize(
    "straggler", ["none", "constant:f=7", "exponential:mean=2", "bursty:p=0.3,length=9,f=9"]
)
@pytest.mark.parametrize("shards", [1, 3])
def test_law_10_asp_conserves_version_staleness(straggler, shards):
    """Sum of tau applied + sum of tau in flight = (N - 1) T, on each partition, whatever the speeds.

    A pull is answered with the version right after its push. The run is cut at a moment of compute, when all
    have weights.
    """
    costs = Costs(compute_s=((0.05,), (0.031, 0.0423)), num_bytes=1000, take_s_per_byte=1e-7)
    outcome = simulated(
        "asp", straggler, 6, num_steps=None, limit_s=20.0, num_shards=shards, costs=costs, seed=5
    )
    assert len(outcome.in_flight) == 6
    applied = sum(tau * count for tau, count in outcome.tau.items())
    flying = sum(
        version - read
        for worker in outcome.in_flight
        for version, read in zip(outcome.versions, worker.versions, strict=True)
    )
    assert applied + flying == 5 * sum(outcome.versions)


def test_a_worker_that_is_always_slow_holds_up_ssp_and_not_asp():
    """Planted: beyond s steps the bound holds everybody to the slow one's pace; without a bound nobody is."""
    rates = {
        model: simulated(model, "constant:f=4", num_steps=None, limit_s=100.0).steps_per_s
        for model in ("bsp", "ssp:3", "asp")
    }
    slowest = 8 / (4 * COMPUTE_S)
    assert rates["bsp"] == pytest.approx(slowest, rel=0.05)
    assert rates["ssp:3"] == pytest.approx(slowest, rel=0.05)
    assert rates["asp"] == pytest.approx((7 + 1 / 4) / COMPUTE_S, rel=0.05)


def test_a_bound_helps_where_everybody_is_slow_now_and_then():
    """Planted: under transient stragglers a larger s goes faster, and asp is the limit."""
    models = ("bsp", "ssp:1", "ssp:3", "ssp:30", "asp")
    rates = [simulated(it, "transient:p=0.1,f=4", num_steps=None, limit_s=100.0).steps_per_s for it in models]
    assert rates == sorted(rates)
    assert rates[2] > 1.2 * rates[0]
    assert rates[3] == pytest.approx(rates[4], rel=0.05)


def test_backup_workers_cut_the_tail_and_lose_samples():
    """Planted: a slow worker that need not be waited for costs its samples and no time."""
    plain, backup = (
        simulated(it, "constant:f=4", num_steps=None, limit_s=100.0) for it in ("bsp", "bsp:backup=1")
    )
    assert plain.dropped == 0
    assert backup.versions[0] == pytest.approx(4 * plain.versions[0], rel=0.05)
    assert backup.dropped > 0
    assert backup.applied == 7 * backup.versions[0]
