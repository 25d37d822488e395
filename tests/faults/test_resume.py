"""A script that stops early by itself is interrupted in a few of the ways in which `resume` does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.processes import Zygote

from . import resume, resumed
from .resume_checks import JOINED_AGAIN, check_steps
from .resume_plan import CONSISTENCIES, IN_NAMESPACES, KEEPS_MEMBERS, Plan, Way, draw

FEW = (
    Plan(consistency="bsp", num_workers=1, ways=((Way.ALL_TERM, 0, 30, 0), (Way.SERVER_KILL, 0, 70, 1))),
    Plan(consistency="asp", num_workers=2, ways=((Way.ONE_TERM, 1, 12, 0),)),
)


@pytest.mark.integration
@pytest.mark.fault
@pytest.mark.parametrize("plan", FEW, ids=str)
def test_however_it_is_interrupted_it_ends_with_the_epochs_the_rate_and_the_samples_of_an_undisturbed_run(
    zygote: Zygote, tmp_path: Path, plan: Plan
) -> None:
    """Alone under bsp to the bit, however often it was started again."""
    expected = resume.undisturbed(zygote.start, tmp_path / "whole", plan.consistency, plan.num_workers)
    assert expected.workers[0]["seen"] == expected.workers[0]["per_epoch"] == resumed.LAST + 1
    resume.run_one(zygote.start, tmp_path / "run", plan, expected)


def test_a_seed_draws_every_way_under_every_model_with_one_to_three_workers() -> None:
    every = {
        (way, consistency, workers) for way in Way for consistency in CONSISTENCIES for workers in (1, 2, 3)
    }
    plans = [draw(1, number, namespaces=True) for number in range(len(every))]
    assert plans == [draw(1, number, namespaces=True) for number in range(len(every))]
    assert every == {(way, plan.consistency, plan.num_workers) for plan in plans for way, *_ in plan.ways}
    exact = {way for plan in plans if plan.exact and plan.num_workers > 1 for way, *_ in plan.ways}
    assert exact == KEEPS_MEMBERS
    plain = {way for number in range(100) for way, *_ in draw(1, number).ways}
    assert plain == set(Way) - IN_NAMESPACES


# -- the judge of it ---------------------------------------------------------------------------------------


def taken(*counts: int, first: int = 1, counted: bool = True) -> list[str]:
    """The lines of a process whose schedule is at these counts behind its steps."""
    return [f"step {first + place} {count} {counted}" for place, count in enumerate(counts)]


JOINS = f"worker 1: {JOINED_AGAIN} 2, at steps {{0: 3}}"


@pytest.mark.parametrize(
    "processes",
    [
        [taken(1, 2, 3), taken(1, 2)],
        [taken(1, 2, 3), [*taken(1, 2, first=3, counted=False), *taken(4, 5, first=4)]],
        [taken(1, 2), taken(1, 2, 3, first=4, counted=False), taken(5, first=5)],
        [taken(1, 2, 3), [*taken(1, 2), JOINS, *taken(1, first=3), *taken(3, 4, first=4)]],
        [[JOINS, *taken(1, 2, 3)]],
    ],
    ids=[
        "undisturbed",
        "another process",
        "one that ended in its first step",
        "joined again in a step",
        "joined again before its first step",
    ],
)
def test_a_schedule_that_advances_once_in_each_step_is_right(processes: list[list[str]]) -> None:
    check_steps(processes)


@pytest.mark.parametrize(
    ("processes", "what"),
    [
        ([taken(1, 3)], "step 2 is scheduled as 3, behind 1"),
        ([taken(1, 1)], "step 2 is scheduled as 1, behind 1"),
        ([taken(2, 3)], "the first step of all is scheduled as 2"),
        ([taken(1, 2), taken(9, first=3)], r"\[8\]"),
        ([[JOINS, *taken(2, 3)]], r"\[2\]"),
    ],
)
def test_a_schedule_that_does_not_is_found(processes: list[list[str]], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        check_steps(processes)


def test_the_rate_is_another_one_behind_every_step_that_a_run_can_have() -> None:
    most = resumed.EPOCHS * resumed.SAMPLES // resumed.BATCH
    rates = [resumed.rate(step, epoch) for epoch in range(resumed.EPOCHS) for step in range(most)]
    assert len(set(rates)) == len(rates)
