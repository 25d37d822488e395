"""Records of simulated runs, costs fitted from records, and how near a simulation comes to a run."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ps_lab.compare.results import Recording
from ps_lab.compare.validation import distances
from ps_lab.simulate.costs import Costs
from ps_lab.simulate.engine import Setup, SimulatedRun, Simulation
from ps_lab.simulate.fit import fit, validate
from ps_lab.simulate.records import read, recorded, write
from ps_wire.errors import UsageError
from ps_wire.spec import consistency, stragglers

COSTS = Costs(compute_s=((0.05,),), num_bytes=1_000_000, latency_s=0.002, worker_bytes_per_s=1e8)


def simulated(
    model: str, straggler: str = "none", costs: Costs = COSTS, num_steps: int = 300, seed: int = 0
) -> SimulatedRun:
    return Simulation(
        Setup(
            consistency=consistency.parse(model),
            num_workers=4,
            num_steps=num_steps,
            costs=costs,
            stragglers=stragglers.parse(straggler),
            seed=seed,
        )
    ).run()


def runs(outcome: SimulatedRun) -> list[Recording]:
    return list(recorded(outcome, "job"))


def test_what_is_written_is_read(tmp_path):
    """One file for each incarnation, and each step in it; a last line that is not whole is left out."""
    outcome = simulated("ssp:2", "crash:step=5,restart=1,worker=1;exponential:mean=1", num_steps=20)
    write(outcome, tmp_path / "records", "job")
    found = read(tmp_path / "records")
    assert list(found) == runs(outcome)
    assert [(it.header.worker, it.header.incarnation) for it in found] == [
        (0, 1),
        (1, 1),
        (1, 2),
        (2, 1),
        (3, 1),
    ]
    assert sum(len(it.steps) for it in found) == len(outcome.steps)
    (first, *_) = sorted((tmp_path / "records").iterdir())
    first.write_text(first.read_text() + '{"step": 99')
    assert [it.steps for it in read(tmp_path / "records")] == [it.steps for it in found]


def test_records_that_are_none_are_refused(tmp_path):
    """An empty folder, and a file of something else, which is named."""
    with pytest.raises(UsageError, match="has no files of records"):
        read(tmp_path)
    (tmp_path / "x.jsonl").write_text("no json\n")
    with pytest.raises(UsageError, match=r"x\.jsonl, line 1: a line is no JSON"):
        read(tmp_path)


def test_a_dropped_push_is_recorded_as_one():
    """Without tau, and with the number of partitions that dropped it."""
    steps = [it for run in runs(simulated("asp:max_delay=1", "transient:p=0.5,f=4")) for it in run.steps]
    assert {it.dropped for it in steps} == {0, 1}
    assert all((it.tau is None) == (it.dropped == 1) for it in steps)


def test_a_fit_finds_the_costs_of_a_run():
    """Compute as it was; latency and link apart where two payloads were recorded, together where one was."""
    small = replace(COSTS, num_bytes=100_000)
    both = fit([*runs(simulated("asp")), *runs(simulated("asp", costs=small))])
    assert both.compute_s == ((pytest.approx(0.05),) * len(both.compute_s[0]),) * 4
    assert both.latency_s == pytest.approx(0.002, rel=1e-6)
    assert both.worker_bytes_per_s == pytest.approx(1e8, rel=1e-6)
    alone = fit(runs(simulated("asp")))
    assert alone.latency_s == pytest.approx(0.002 + 0.01, rel=1e-6)
    assert alone.worker_bytes_per_s == math.inf


def test_a_fit_of_nothing_is_refused():
    """First steps are left out, so one is not enough."""
    with pytest.raises(UsageError, match="two steps of a worker at least"):
        fit(runs(simulated("asp", num_steps=1)))


@pytest.mark.parametrize("model", ["bsp", "bsp:backup=1", "ssp:2", "asp"])
def test_costs_of_a_bsp_run_foretell_the_others(model):
    """Fitted from one run under bsp with stragglers, a simulation comes near a run under another model."""
    fitted = fit(runs(simulated("bsp", "exponential:mean=1;seed=1", num_steps=1000)))
    real = simulated(model, "exponential:mean=1;seed=2")
    found = validate(runs(real), simulated(model, costs=fitted, seed=7))
    assert found.holds, found
    assert found.ratio == pytest.approx(1.0, abs=0.1)
    assert found.total_variation <= 0.15


def test_wrong_costs_are_found_out():
    """A simulation that is twice as fast, or has another staleness, does not pass."""
    real = runs(simulated("asp", "exponential:mean=1"))
    quick = replace(COSTS, compute_s=((0.02,),))
    assert not validate(real, simulated("asp", "exponential:mean=1", costs=quick)).holds
    stale = validate(real, simulated("asp", "constant:f=1.999,worker=all"))
    assert stale.ratio == pytest.approx(1.0, abs=0.1)
    assert stale.total_variation > 0.3


def test_runs_of_other_models_are_not_compared():
    """The error names both."""
    with pytest.raises(
        UsageError, match="4 workers under asp is not compared with one of 4 workers under bsp"
    ):
        validate(runs(simulated("asp")), simulated("bsp"))
    with pytest.raises(UsageError, match="nothing was recorded"):
        validate([], simulated("bsp"))


def test_distances_by_hand():
    """Half of all pushes two updates further: half of them moved, by one on average."""
    assert distances({0: 4}, {0: 2, 2: 2}) == (0.5, 1.0)
    assert distances({1: 3, 5: 1}, {1: 6, 5: 2}) == (0.0, 0.0)
    assert distances({0: 1}, {10**12: 1}) == (1.0, 1e12)
    assert distances({}, {}) == (0.0, 0.0)
    assert distances({}, {0: 1}) == (1.0, math.inf)
