"""A script that stops early by itself is interrupted in a few of the ways in which `resume` does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.processes import Zygote

from . import resume, resumed
from .resume import CONSISTENCIES, KEEPS_MEMBERS, Plan, Way, draw

FEW = (
    Plan(consistency="bsp", num_workers=1, ways=((Way.ALL_TERM, 0, 30, 0), (Way.SERVER_KILL, 0, 70, 1))),
    Plan(consistency="asp", num_workers=2, ways=((Way.ONE_TERM, 1, 12, 0),)),
)


@pytest.mark.integration
@pytest.mark.fault
@pytest.mark.timeout(400)
@pytest.mark.parametrize("plan", FEW, ids=str)
def test_however_it_is_interrupted_it_ends_with_the_epochs_the_rate_and_the_samples_of_an_undisturbed_run(
    zygote: Zygote, tmp_path: Path, plan: Plan
) -> None:
    """Alone under bsp to the bit, however often it was started again."""
    expected = resume.undisturbed(zygote.start, tmp_path / "whole", plan.consistency, plan.num_workers)
    assert expected["seen"] == expected["per_epoch"] == resumed.LAST + 1
    resume.run_one(zygote.start, tmp_path / "run", plan, expected)


def test_a_seed_draws_every_way_under_every_model_with_one_to_three_workers() -> None:
    plans = [draw(1, number) for number in range(100)]
    assert plans == [draw(1, number) for number in range(100)]
    assert {(plan.consistency, plan.num_workers) for plan in plans} == {
        (consistency, workers) for consistency in CONSISTENCIES for workers in (1, 2, 3)
    }
    assert {way for plan in plans for way, *_ in plan.ways} == set(Way)
    exact = [plan for plan in plans if plan.exact]
    assert {way for plan in exact for way, *_ in plan.ways} == set(Way)
    assert any(plan.num_workers > 1 for plan in exact)
    assert all({way for way, *_ in plan.ways} <= KEEPS_MEMBERS for plan in exact if plan.num_workers > 1)
