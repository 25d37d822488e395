"""Cores that workers and servers share: times by hand; with them costs carry over to other models."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ps_lab.compare.results import Recording
from ps_lab.simulate.costs import Costs
from ps_lab.simulate.engine import Setup, SimulatedRun, Simulation
from ps_lab.simulate.fit import fit, fit_on_shared_cores, validate
from ps_lab.simulate.measured import Measured
from ps_lab.simulate.records import recorded
from ps_lab.simulate.shared_cores import SharedCores
from ps_wire.spec import consistency, stragglers

WORK_S = 0.01
STEPS = 100
COSTS = Costs(compute_s=((WORK_S,),), num_bytes=1000, take_s_per_byte=1e-6, apply_s_per_byte=1e-6, cores=2.0)


def simulated(model: str, straggler: str = "none", costs: Costs = COSTS) -> SimulatedRun:
    profile = stragglers.parse(straggler)
    return Simulation(
        Setup(
            consistency=consistency.parse(model),
            num_workers=4,
            num_steps=STEPS,
            costs=costs,
            stragglers=profile,
            seed=profile.seed,
        )
    ).run()


def measured(model: str, straggler: str = "none", costs: Costs = COSTS) -> Measured:
    """As a comparison would have recorded it: each step with the processor time that it took."""
    outcome = simulated(model, straggler, costs)
    steps = len(outcome.steps)
    applied = steps if model != "bsp" else steps // 4
    found = tuple(
        replace(one, steps=tuple(replace(step, cpu_s=WORK_S) for step in one.steps))
        for one in recorded(outcome, "job")
    )
    return Measured(
        recordings=found,
        num_shards=1,
        stragglers=stragglers.parse(straggler),
        server_cpu_s=costs.num_bytes * (costs.take_s_per_byte * steps + costs.apply_s_per_byte * applied),
    )


def ends(cores: SharedCores, *works_s: float) -> list[tuple[int, float]]:
    """Which of the tasks, all begun at 0, ends when, in that order."""
    ended: list[tuple[int, float]] = []
    for number, work_s in enumerate(works_s):
        cores.begin(0.0, work_s, lambda number=number: ended.append((number, now_s)))
    while (now_s := cores.next_s()) < math.inf:
        cores.advance(now_s)
    return ended


def test_tasks_take_turns_on_the_cores_by_hand():
    """Three tasks on two cores, slices of a second: the third begins when the first has ended."""
    assert ends(SharedCores(2.0, slice_s=1.0), 1.0, 2.0, 2.0) == [(0, 1.0), (1, 2.0), (2, 3.0)]
    cores = SharedCores(1.0, slice_s=1.0)
    assert ends(cores, 3.0, 1.5) == [(1, 3.5), (0, 4.5)]
    assert cores.slowness == 1.0


def test_with_short_slices_all_get_the_same_part():
    """Two thirds of a core each; when the first has ended, each of the others has one."""
    found = ends(SharedCores(2.0, slice_s=0.001), 1.0, 2.0, 2.0)
    assert [number for number, _ in found] == [0, 1, 2]
    assert [ended_s for _, ended_s in found] == pytest.approx([1.5, 2.5, 2.5], abs=0.003)


def test_of_cores_that_others_take_a_part_of_all_are_slower():
    assert ends(SharedCores(1.5, slice_s=1.0), 0.75, 0.75) == [(0, 1.0), (1, 1.0)]


def test_a_share_of_the_servers_time_is_in_the_way_of_pushes_and_all_of_it_on_the_cores():
    """10 ms of a worker and 5 ms of a server: a fifth of the 5 is waited for, and all of them take a core."""
    alone = replace(COSTS, take_s_per_byte=5e-6, apply_s_per_byte=0.0, cores=64.0)
    waited = [
        simulated("asp", costs=replace(alone, service_share=share)).steps.seconds("push_s").min()
        for share in (1.0, 0.2)
    ]
    assert waited == pytest.approx([0.005, 0.001])
    busy = replace(alone, cores=1.0, service_share=0.2)
    assert simulated("asp", costs=busy).steps_per_s == pytest.approx(1 / 0.015, rel=0.02)


def test_the_share_is_fitted_to_the_time_that_steps_wait_for_push_and_pull():
    real = replace(COSTS, take_s_per_byte=3e-6, service_share=0.25)
    runs = [measured(model, costs=real) for model in ("bsp", "asp")]
    assert fit_on_shared_cores(runs, 2.0).service_share == pytest.approx(0.25, abs=0.1)
    whole = [measured(model, costs=replace(real, service_share=1.0)) for model in ("bsp", "asp")]
    assert fit_on_shared_cores(whole, 2.0).service_share == pytest.approx(1.0, abs=0.1)


def test_a_step_of_bsp_on_shared_cores_takes_its_work_over_the_cores():
    """Four workers with 10 ms each on two cores: 20 ms, and the servers' 4 x 1 ms + 1 ms beside them."""
    outcome = simulated("bsp", costs=replace(COSTS, take_s_per_byte=0.0, apply_s_per_byte=0.0))
    assert outcome.duration_s / STEPS == pytest.approx(0.02)
    alone = simulated("bsp", costs=replace(COSTS, take_s_per_byte=0.0, apply_s_per_byte=0.0, cores=8.0))
    assert alone.duration_s / STEPS == pytest.approx(0.01)


def test_servers_work_on_the_cores_of_the_workers():
    """10 ms of a step for its worker and 5 ms for a server, all on one core: 67 steps a second."""
    costs = replace(COSTS, take_s_per_byte=5e-6, apply_s_per_byte=0.0, cores=1.0)
    assert simulated("asp", costs=costs).steps_per_s == pytest.approx(1 / 0.015, rel=0.02)


def test_a_straggler_sleeps_and_leaves_its_core_to_the_others():
    """By what it has measured in the step before, as a real one does: first steps are never slow."""
    outcome = simulated("bsp", "constant:f=3,worker=0", replace(COSTS, cores=8.0))
    compute_s = outcome.steps.seconds("compute_s")[outcome.steps.whole("worker") == 0]
    assert compute_s[0] == pytest.approx(WORK_S)
    assert compute_s[5] == pytest.approx(3 * WORK_S)


def test_costs_of_two_models_on_shared_cores_foretell_the_others():
    """Processor time does not depend on who waits, and two models tell what servers take."""
    fitted = fit_on_shared_cores([measured("bsp", "transient:p=0.1,f=5;seed=1"), measured("asp")], 2.0)
    assert fitted.cores == pytest.approx(2.0, rel=0.05)
    for model in ("bsp", "ssp:1", "ssp:3", "asp"):
        real = measured(model, "transient:p=0.1,f=5;seed=2")
        found = validate(real.recordings, simulated(model, "transient:p=0.1,f=5;seed=2", fitted))
        assert found.holds, (model, found)


def test_what_servers_take_by_push_and_by_step_is_told_apart_by_two_models():
    one = fit_on_shared_cores([measured("asp"), measured("bsp")], 2.0)
    assert one.take_s_per_byte * one.num_bytes == pytest.approx(1e-3)
    assert one.apply_s_per_byte * one.num_bytes == pytest.approx(1e-3)
    alone = fit_on_shared_cores([measured("asp")], 2.0)
    assert (alone.take_s_per_byte * alone.num_bytes, alone.apply_s_per_byte) == (pytest.approx(2e-3), 0.0)


def test_a_straggler_is_slower_in_its_compute_and_not_in_the_exchange():
    """6 ms of compute and 4 ms of exchange, each worker with a core: five times as long is 30 + 4 ms."""
    apart = replace(COSTS, compute_s=((0.006,),), exchange_s=0.004, cores=8.0)
    free = replace(apart, take_s_per_byte=0.0, apply_s_per_byte=0.0)
    outcome = simulated("asp", "constant:f=5,worker=0", free)
    steps = outcome.steps
    for worker, compute_s in ((0, 0.030), (1, 0.006)):
        own = steps.whole("worker") == worker
        assert steps.seconds("compute_s")[own][5] == pytest.approx(compute_s)
        ended_s = steps.seconds("ended_s")[own]
        assert ended_s[6] - ended_s[5] == pytest.approx(compute_s + 0.004)


def test_what_a_worker_computes_and_what_it_exchanges_are_told_apart():
    """By the processor time at its call; records of before have none, and all of theirs is compute."""
    run = measured("asp")
    apart = tuple(
        replace(one, steps=tuple(replace(step, compute_cpu_s=0.6 * WORK_S) for step in one.steps))
        for one in run.recordings
    )
    fitted = fit_on_shared_cores([replace(run, recordings=apart)], 2.0)
    assert fitted.compute_s[0][0] == pytest.approx(0.6 * WORK_S)
    assert fitted.exchange_s == pytest.approx(0.4 * WORK_S)
    assert fitted.cores == pytest.approx(2.0, rel=0.05)
    before = fit_on_shared_cores([run], 2.0)
    assert (before.compute_s[0][0], before.exchange_s) == (pytest.approx(WORK_S), 0.0)


def test_a_run_that_got_a_part_of_the_cores_is_found_to_have_got_it():
    fitted = fit_on_shared_cores([measured("asp")], 6.0)
    assert fitted.cores == pytest.approx(2.0, rel=0.05)


def test_a_first_step_that_imports_and_compiles_takes_no_cores_away():
    """It is no part of the costs of a step, and so none of the time that these are to explain."""
    run = measured("asp")
    late_s = 3.0

    def late(one: Recording) -> Recording:
        first = replace(one.steps[0], ended_s=one.steps[0].ended_s + late_s)
        rest = (
            replace(step, started_s=step.started_s + late_s, ended_s=step.ended_s + late_s)
            for step in one.steps[1:]
        )
        return replace(one, steps=(first, *rest))

    fitted = fit_on_shared_cores([replace(run, recordings=tuple(map(late, run.recordings)))], 6.0)
    assert fitted.cores == pytest.approx(2.0, rel=0.05)


def test_costs_by_a_clock_do_not_carry_over_on_shared_cores():
    """What the other fit is told of: a step computes longer where nobody waits."""
    by_clock = fit(measured("bsp", "transient:p=0.3,f=8;seed=1").recordings)
    found = validate(measured("asp").recordings, simulated("asp", costs=by_clock))
    assert not found.holds
