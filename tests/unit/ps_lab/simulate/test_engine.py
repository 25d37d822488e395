"""The virtual clock: what a step costs, who waits for whom, who comes and goes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ps_lab.simulate.costs import Costs
from ps_lab.simulate.engine import Setup, SimulatedRun, Simulation
from ps_lab.simulate.steps import SECONDS, WHOLE
from ps_wire.errors import UsageError
from ps_wire.spec import consistency, stragglers

MODELS = ("bsp", "bsp:backup=1", "bsp:backup=3", "ssp:0", "ssp:2", "asp", "asp:max_delay=3")


def simulated(model: str = "bsp", straggler: str = "none", num_workers: int = 4, **setup) -> SimulatedRun:
    setup = {"num_steps": 20} | setup
    return Simulation(
        Setup(
            consistency=consistency.parse(model),
            num_workers=num_workers,
            stragglers=stragglers.parse(straggler),
            **setup,
        )
    ).run()


def columns(outcome: SimulatedRun) -> dict[str, np.ndarray]:
    return {name: outcome.steps.whole(name) for name in WHOLE} | {
        name: outcome.steps.seconds(name) for name in SECONDS
    }


def test_a_step_costs_what_its_parts_cost():
    """Compute, bytes up, latency, take, apply, bytes down, latency: one after the other for one worker."""
    costs = Costs(
        compute_s=((2.0,),),
        num_bytes=100,
        latency_s=0.5,
        worker_bytes_per_s=100.0,
        server_bytes_per_s=200.0,
        take_s_per_byte=0.03,
        apply_s_per_byte=0.04,
    )
    outcome = simulated("asp", num_workers=1, num_steps=2, costs=costs)
    got = columns(outcome)
    assert got["compute_s"] == pytest.approx([2.0, 2.0])
    assert got["push_s"] == pytest.approx([1.0 + 0.5 + 3.0 + 4.0] * 2)
    assert got["gate_s"] == pytest.approx([0.0, 0.0])
    assert got["pull_s"] == pytest.approx([1.0 + 0.5] * 2)
    assert got["ended_s"] == pytest.approx([12.0, 24.0])
    assert outcome.duration_s == pytest.approx(24.0)


def test_a_slow_link_slows_what_is_on_the_wire_alone():
    """Both ways, bytes and latency."""
    costs = Costs(compute_s=((1.0,),), num_bytes=100, latency_s=0.5, worker_bytes_per_s=100.0)
    outcome = simulated("asp", "slow_link:f=3,worker=1", num_workers=2, num_steps=1, costs=costs)
    assert sorted(outcome.steps.seconds("ended_s")) == pytest.approx([1 + 3.0, 1 + 9.0])


def test_a_shard_works_on_one_push_at_a_time():
    """Who comes second waits for the first to be taken."""
    costs = Costs(compute_s=((1.0,),), num_bytes=10, take_s_per_byte=0.1)
    outcome = simulated("asp", num_workers=3, num_steps=1, costs=costs)
    assert sorted(outcome.steps.seconds("ended_s")) == pytest.approx([2.0, 3.0, 4.0])


def test_a_shards_link_is_shared():
    """Three pushes at once, and their weights, one after the other."""
    costs = Costs(compute_s=((1.0,),), num_bytes=10, server_bytes_per_s=10.0)
    outcome = simulated("asp", num_workers=3, num_steps=1, costs=costs)
    assert sorted(outcome.steps.seconds("push_s")) == pytest.approx([1.0, 2.0, 3.0])
    assert sorted(outcome.steps.seconds("ended_s")) == pytest.approx([3.0, 4.0, 5.0])
    many = simulated("bsp", num_workers=3, num_steps=1, costs=costs)
    assert sorted(many.steps.seconds("ended_s")) == pytest.approx([5.0, 6.0, 7.0])


def test_shards_work_beside_each_other():
    """Two shards take half as long for their halves."""
    costs = Costs(compute_s=((1.0,),), num_bytes=10, take_s_per_byte=0.1)
    one, two = (simulated("bsp", num_steps=1, costs=costs, num_shards=shards) for shards in (1, 2))
    assert one.duration_s - 1.0 == pytest.approx(2 * (two.duration_s - 1.0))


@pytest.mark.parametrize("model", MODELS)
def test_time_is_split_without_rest(model):
    """Compute, push, gate and pull make up each step; the next one begins where the last has ended."""
    costs = Costs(
        num_bytes=4000, latency_s=0.01, worker_bytes_per_s=1e5, take_s_per_byte=1e-5, control_s=0.003
    )
    got = columns(simulated(model, "transient:p=0.3,f=4", costs=costs, num_shards=2, partitions_per_shard=2))
    parts = got["compute_s"] + got["push_s"] + got["gate_s"] + got["pull_s"]
    assert parts == pytest.approx(got["ended_s"] - got["started_s"])
    assert all((got[name] >= -1e-12).all() for name in ("compute_s", "push_s", "gate_s", "pull_s"))
    for worker in range(4):
        own = got["worker"] == worker
        assert got["started_s"][own][1:] == pytest.approx(got["ended_s"][own][:-1])
        assert list(got["step"][own]) == list(range(own.sum()))


@pytest.mark.parametrize("model", MODELS)
def test_equal_setups_have_equal_runs(model):
    """To the bit; another seed has another."""
    costs = Costs(compute_s=((0.05, 0.06, 0.08),))
    first, again = (columns(simulated(model, "exponential:mean=1", costs=costs, seed=3)) for _ in range(2))
    assert all(np.array_equal(first[name], again[name], equal_nan=True) for name in first)
    other = simulated(model, "exponential:mean=1", costs=costs, seed=4)
    assert not np.array_equal(first["ended_s"], other.steps.seconds("ended_s"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "straggler",
    [
        "none",
        "transient:p=0.3,f=9",
        "crash:step=5,worker=1",
        "crash:step=5,restart=1,worker=1;transient:p=0.2,f=4",
        "crash:step=5,restart=30,worker=0+2;exponential:mean=1",
        "pause:step=7,s=1,worker=3",
        "pause:step=7,s=60,worker=3;crash:step=7,restart=5,worker=1",
    ],
)
@pytest.mark.parametrize("shards", [1, 2])
def test_law_12_every_push_is_accounted_for(model, straggler, shards):
    """Applied + dropped = received, and the run ends, whoever dies, stands still or comes back."""
    outcome = simulated(model, straggler, num_shards=shards, costs=Costs(control_s=0.002))
    assert outcome.applied + outcome.dropped == outcome.received
    assert outcome.received == shards * len(outcome.steps)
    assert len(set(outcome.versions)) == 1
    if "max_delay" not in model:
        assert outcome.steps.whole("clock").max() == 19


def test_the_others_stand_still_for_the_lease_of_one_that_died():
    """Then bsp goes on without it."""
    outcome = simulated("bsp", "crash:step=5,worker=1", costs=Costs(lease_s=7.0))
    assert outcome.versions == (20,)
    assert outcome.duration_s == pytest.approx(20 * 0.05 + 7.0 - 0.05, abs=0.06)
    assert (outcome.steps.whole("worker") == 1).sum() == 5


def test_who_is_started_again_enters_where_the_job_is():
    """With another incarnation, behind the step that the others had all pushed, and is not killed again."""
    outcome = simulated("bsp", "crash:step=5,restart=1,worker=1", costs=Costs(lease_s=7.0))
    own = outcome.steps.whole("worker") == 1
    assert list(outcome.steps.whole("clock")[own]) == [*range(5), *range(6, 20)]
    assert list(outcome.steps.whole("incarnation")[own]) == [1] * 5 + [2] * 14
    assert list(outcome.steps.whole("step")[own]) == [*range(5), *range(14)]
    assert outcome.duration_s == pytest.approx(5 * 0.05 + 1.0 + 14 * 0.05)
    late = simulated("bsp", "crash:step=5,restart=7.2,worker=1", costs=Costs(lease_s=7.0))
    clocks = late.steps.whole("clock")[late.steps.whole("worker") == 1]
    assert list(clocks) == [*range(5), *range(clocks[5], 20)]
    assert clocks[5] > 7


def test_who_is_started_again_at_its_step_takes_it():
    """Alone, nothing has gone on without it: a crash happens once."""
    outcome = simulated("asp", "crash:step=5,restart=1", num_workers=1, limit_s=50.0)
    assert list(outcome.steps.whole("clock")) == list(range(20))


def test_who_was_evicted_is_not_waited_for():
    """Of three that are left, one is a backup worker."""
    outcome = simulated("bsp:backup=1", "crash:step=5,worker=1;exponential:mean=1", costs=Costs(lease_s=0.01))
    taken = outcome.steps.whole("clock")[outcome.steps.whole("dropped") == 0]
    assert [int((taken == clock).sum()) for clock in (0, 4, 8, 19)] == [3, 3, 2, 2]


def test_a_pause_within_the_lease_takes_its_time():
    """The others wait for it, and nobody is evicted."""
    outcome = simulated("bsp", "pause:step=5,s=3", costs=Costs(lease_s=7.0))
    assert outcome.duration_s == pytest.approx(20 * 0.05 + 3.0)
    assert set(outcome.steps.whole("incarnation")) == {1}


def test_backup_workers_are_chosen_once_for_all_shards():
    """Each step takes exactly N - B pushes on each partition, whatever the order in which they come."""
    costs = Costs(control_s=0.004, latency_s=0.001)
    outcome = simulated(
        "bsp:backup=2",
        "exponential:mean=2",
        6,
        costs=costs,
        num_shards=3,
        partitions_per_shard=2,
        num_steps=50,
    )
    assert outcome.versions == (50,) * 6
    assert outcome.applied == 6 * 4 * 50
    assert set(outcome.steps.whole("dropped")) == {0, 6}
    assert outcome.missed > 0


def test_the_time_ends_a_run():
    """What ends later is not in it, and rates are of that time."""
    outcome = simulated("asp", num_steps=None, limit_s=1.02)
    assert outcome.duration_s == 1.02
    assert len(outcome.steps) == 4 * 20
    assert outcome.steps.seconds("ended_s").max() <= 1.02
    assert outcome.steps_per_s == pytest.approx(80 / 1.02)
    on_the_wire = simulated("asp", num_steps=None, limit_s=0.1, costs=Costs(latency_s=0.03))
    assert on_the_wire.applied == 4
    assert len(on_the_wire.steps) == 0


def test_a_push_that_was_dropped_has_no_staleness():
    """It is told from one that was applied."""
    outcome = simulated("asp:max_delay=1", "transient:p=0.5,f=4")
    dropped = outcome.steps.whole("dropped") > 0
    assert dropped.any()
    assert (outcome.steps.whole("tau")[dropped] == -1).all()
    assert outcome.steps.whole("tau")[~dropped].max() <= 1
    assert dropped.sum() == outcome.dropped


def test_staleness_on_purpose_is_in_the_records():
    """BSP without a race whose gradients are all tau steps late."""
    assert set(simulated("bsp", delay=3).steps.whole("tau")) == {3}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_workers": 0}, "num_workers must be from 1"),
        ({"num_shards": 0}, "servers and partitions must be >= 1"),
        ({"num_shards": 100, "partitions_per_shard": 100}, "together at most 4096"),
        ({"num_steps": None}, "a number of steps or a time must be given"),
        ({"num_steps": 0}, "num_steps must be >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be >= 1"),
        ({"limit_s": 0.0}, "limit_s must be > 0"),
        ({"limit_s": math.inf}, "limit_s must be > 0 and finite"),
        ({"delay": 2, "model": "asp"}, "a staleness of 2 on purpose must be >= 0 and needs bsp, got asp"),
        ({"delay": -1}, "a staleness of -1 on purpose"),
    ],
)
def test_setups_that_make_no_sense_are_refused(values, message):
    """Each names the value."""
    with pytest.raises(UsageError, match=message):
        simulated(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"compute_s": ()}, "compute_s needs one duration"),
        ({"compute_s": ((),)}, "compute_s needs one duration"),
        ({"compute_s": ((-1.0,),)}, "compute_s must be >= 0"),
        ({"compute_s": ((math.nan,),)}, "compute_s must be >= 0"),
        ({"latency_s": math.inf}, "latency_s must be >= 0 and finite"),
        ({"worker_bytes_per_s": 0.0}, "worker_bytes_per_s must be > 0"),
        ({"num_bytes": -1}, "num_bytes must be >= 0"),
    ],
)
def test_costs_that_make_no_sense_are_refused(values, message):
    """Each names the value."""
    with pytest.raises(UsageError, match=message):
        Costs(**values)
