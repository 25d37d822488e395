"""What a comparison says: each question is answered, found or not, and with few seeds without a test."""

from dataclasses import replace
from pathlib import Path

import pytest

from ps_lab.compare.comparison import Comparison
from ps_lab.compare.folder import Folder
from ps_lab.compare.limits import sentences
from ps_lab.compare.sentences import QUALITY, SPEED, TARGET, findings, in_short
from ps_lab.compare.tables import splits

from .made import EXPERIMENT, FACTS, World, made_folder, no_change

FEW = EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0, 1, 2]")
LEAST = FEW[: FEW.rindex("[[profiles]]")].replace("[0, 1, 2]", "[0]")  # three runs
BSP_ALONE = LEAST.replace('["bsp", "ssp:3", "asp"]', '["bsp"]').replace("[0]", "[0, 1, 2]")


def compared(path: Path, text: str = EXPERIMENT, change=no_change, **given) -> Comparison:
    return Comparison.read(Folder.open(made_folder(path / "out", text, change, **given).path))


def test_every_question_is_answered_under_every_profile(tmp_path: Path):
    found = findings(compared(tmp_path))
    assert {(one.where, one.subject, one.question) for one in found} == {
        (f"{profile}, 4 workers", model, question)
        for profile in ("quiet", "transient")
        for model in ("ssp:3", "asp")
        for question in (TARGET, SPEED, QUALITY)
    }
    assert {one.reference for one in found} == {"bsp"}
    assert all(one.p is not None and one.p >= one.effect.p for one in found)


def test_an_effect_that_was_planted_is_found_with_its_interval(tmp_path: Path):
    """ssp:3 is quicker under transient stragglers, and does no worse in the end."""
    found = {
        (one.subject, one.question): one for one in findings(compared(tmp_path)) if "transient" in one.where
    }
    quicker = found["ssp:3", TARGET]
    assert quicker.found
    assert quicker.effect.high < 1
    assert "ssp:3 reached accuracy >= 0.9 in 0." in str(quicker)
    assert "x the time of bsp [" in str(quicker)
    assert "5 seeds, adjusted p" in str(quicker)
    same = found["ssp:3", QUALITY]
    assert not same.found
    assert "no difference found in accuracy at the end" in str(same)


def test_with_few_seeds_there_is_an_effect_and_no_test(tmp_path: Path):
    comparison = compared(tmp_path, FEW)
    found = findings(comparison)
    assert all(one.p is None and not one.found for one in found)
    text = " ".join(map(str, found))
    assert "3 seeds, which agree on the direction and are too few for a test" in text
    assert "over seeds)" in text
    for word in ("signific", "difference found", "p =", "p <", "["):
        assert word not in text
    assert any("There are 3 seeds: too few" in one for one in sentences(comparison))


def test_each_model_is_reported_at_its_own_best_rate_and_at_the_common_one(tmp_path: Path):
    def change(run, world: World) -> None:
        world.best_lr = 0.0003 if run.model == "asp" else 0.001

    text = FEW.replace("grid = [0.001]", "grid = [0.0003, 0.001, 0.003]\ncommon = 0.001")
    comparison = compared(tmp_path, text, change)
    assert comparison.entries["asp", "quiet", 4].best.lr == 0.0003
    assert comparison.entries["bsp", "quiet", 4].best.lr == 0.001
    asp = [one for one in findings(comparison) if one.subject == "asp" and "quiet" in one.where]
    assert {one.rates for one in asp} == {"best lr each, 0.0003 and 0.001", "both at the common lr 0.001"}
    said = " ".join(sentences(comparison))
    assert "at the edge of its grid" in said
    assert "asp (quiet, 4 workers): 0.0003" in said
    assert "bsp (quiet" not in said
    assert "chosen by the same runs" in said


def test_a_target_that_one_model_misses_is_said_and_not_averaged(tmp_path: Path):
    def change(run, world: World) -> None:
        world.best_lr = 0.1 if run.model == "asp" else 0.001

    comparison = compared(tmp_path, EXPERIMENT, change)
    asp = next(one for one in findings(comparison) if one.subject == "asp" and one.question == TARGET)
    assert asp.effect is None
    assert "cannot be compared by the time to accuracy >= 0.9" in str(asp)
    assert "asp did not in 5 of 5 seeds" in str(asp)
    assert any(
        "was reached in no run at its best learning rate by: asp" in one for one in sentences(comparison)
    )


def test_where_one_seed_missed_the_target_there_is_no_ratio_of_the_others(tmp_path: Path):
    """It would flatter: the slowest runs are those that did not reach it."""

    def change(run, world: World) -> None:
        world.best_lr = 0.1 if run.model == "asp" and run.seed == 1 else 0.001

    asp = next(
        one
        for one in findings(compared(tmp_path, EXPERIMENT, change))
        if one.subject == "asp" and one.question == TARGET
    )
    assert asp.effect is None
    assert "asp did not in 1 of 5 seeds" in str(asp)


def test_a_target_that_nobody_reaches_is_said(tmp_path: Path):
    comparison = compared(tmp_path, FEW.replace("at_least = 0.9", "at_least = 0.9999"))
    assert any("No run reached accuracy >= 0.9999" in one for one in sentences(comparison))
    assert all(one.effect is None for one in findings(comparison) if one.question == TARGET)


def test_runs_that_failed_or_diverged_are_named_and_in_no_mean(tmp_path: Path):
    def change(run, world: World) -> None:
        if run.model == "asp" and run.seed == 1:
            world.nan_from = 20
        if run.model == "asp" and run.seed == 2:
            world.fails = "worker 3 exited with code 1"

    comparison = compared(tmp_path, FEW, change)
    arm = comparison.entries["asp", "quiet", 4].best
    assert (arm.diverged, arm.failed, len(arm.good)) == (1, 1, 1)
    assert arm.quality.keys() == {0}
    quality = next(one for one in findings(comparison) if one.subject == "asp" and one.question == QUALITY)
    assert "1 of 3 runs of asp diverged and 1 of 3 runs of asp failed and are left out" in str(quality)
    speed = next(one for one in findings(comparison) if one.subject == "asp" and one.question == SPEED)
    assert speed.note == quality.note
    assert arm.samples_per_s.keys() == {0}
    assert speed.effect is not None
    assert speed.effect.pairs == 1
    said = " ".join(sentences(comparison))
    assert "worker 3 exited with code 1" in said
    assert "diverged (their loss was no number): asp (quiet), asp (transient)" in said


def test_runs_that_failed_are_in_no_mean_of_a_workers_time(tmp_path: Path):
    def change(run, world: World) -> None:
        if run.seed == 2:
            world.fails, world.compute_s = "worker 3 exited with code 1", 10.0

    with_it = compared(tmp_path, BSP_ALONE, change)
    without = compared(tmp_path / "without", BSP_ALONE, change, only=lambda run: run.seed != 2)
    assert splits(with_it).rows == splits(without).rows


def test_where_nothing_can_be_ranked_that_is_what_is_said_in_short(tmp_path: Path):
    def change(run, world: World) -> None:
        world.fails = "worker 3 exited with code 1"

    comparison = compared(tmp_path, FEW, change)
    assert in_short(comparison, findings(comparison)) == tuple(
        f"{name}, 4 workers: there is no run whose speed or result could be ranked."
        for name in ("quiet", "transient")
    )


def test_what_a_budget_left_out_is_said(tmp_path: Path):
    text = "budget_s = 60\n" + EXPERIMENT
    comparison = compared(tmp_path, text, only=lambda run: run.seed == 0)
    (missing,) = [one for one in sentences(comparison) if "have no result" in one]
    assert missing.startswith(
        "24 of 30 runs have no result (the comparison has not been run to its end; its budget is "
        "60 s); the first "
    )
    found = findings(comparison)
    assert all(one.effect is None or one.effect.pairs == 1 for one in found)
    assert all("How sure: one seed is too few" in line for line in in_short(comparison, found))
    assert any("There is 1 seed by now: too few" in one for one in sentences(comparison))


def test_a_rate_that_was_tried_with_more_seeds_is_no_better_for_it(tmp_path: Path):
    """A budget ends in the middle of a seed: rates are compared by the seeds that all of them have."""
    text = BSP_ALONE.replace("grid = [0.001]", "grid = [0.002, 0.001]")
    comparison = compared(tmp_path, text, only=lambda run: run.seed == 0 or run.lr == 0.002)
    (entry,) = comparison.entries.values()
    assert [len(arm.target_s) for arm in entry.arms] == [1, 3]
    assert entry.best.lr == 0.001


def test_a_target_that_is_met_before_the_first_step_is_none(tmp_path: Path):
    """A reader may be there before any worker: what it saw then has no time that could be compared."""

    def change(run, world: World) -> None:
        world.early = 0.95

    early, later = compared(tmp_path, LEAST, change), compared(tmp_path / "later", LEAST)
    assert [one.target_s for one in early.figures] == [one.target_s for one in later.figures]
    assert all(one.effect is not None for one in findings(early) if one.question == TARGET)
    assert "accuracy >= 0.9 was met before the first step in 3 of 3 runs" in " ".join(sentences(early))
    assert "before the first step" not in " ".join(sentences(later))


def test_an_evaluation_that_says_nothing_of_the_metric_is_said(tmp_path: Path):
    """Its script may have failed in some runs: they are judged by what they logged, beside the others."""

    def change(run, world: World) -> None:
        world.evaluates = run.model != "asp"

    evaluation = '[evaluation]\nscript = "evaluate.py"\nevery_s = 1.0\n[learning_rates]'
    text = LEAST.replace("[learning_rates]", evaluation)
    said = " ".join(sentences(compared(tmp_path, text, change)))
    assert "The evaluation script said nothing of accuracy in 1 of 3 runs" in said
    assert "said nothing" not in " ".join(sentences(compared(tmp_path / "all", text)))
    facts = replace(FACTS, versions=FACTS.versions | {"simulated": "in virtual time; costs as given"})
    simulated = compared(tmp_path / "simulated", text, change, facts=facts)
    assert "said nothing" not in " ".join(sentences(simulated))


def test_limits_of_the_machine_and_of_what_was_measured(tmp_path: Path):
    def change(run, world: World) -> None:
        world.evaluates = world.loss = False

    facts = replace(FACTS, cores=2, changed=True)
    text = FEW.replace('script = "train.py"', 'script = "train.py"\nseed_argument = ""')
    text = text.replace('[stop]\nmetric = "accuracy"\nat_least = 0.9', "")
    said = " ".join(sentences(compared(tmp_path, text, change, facts=facts)))
    for part in (
        "6 processes of servers and workers shared 2 cores",
        "changes that are in no commit",
        "takes no seed",
        "No target was set",
        "logs no loss",
        "No run measured loss",
        "at one learning rate",
        "without a shaped network",
    ):
        assert part in said


def test_runs_of_different_code_are_said_to_be(tmp_path: Path):
    from .made import made_run  # noqa: PLC0415

    folder = made_folder(tmp_path / "out", FEW, only=lambda run: run.seed == 0)
    for run in folder.missing():
        made_run(run, facts=replace(FACTS, commit="d" * 40, host="there"))
    said = " ".join(sentences(Comparison.read(folder)))
    assert "Runs had different machines" in said
    assert "Runs had different commits" in said
    assert "different scripts" not in said


def test_two_folders_are_compared_model_by_model(tmp_path: Path):
    def slower(run, world: World) -> None:
        world.compute_s = 0.04

    now = compared(tmp_path, EXPERIMENT)
    before = Comparison.read(made_folder(tmp_path / "before", EXPERIMENT, slower))
    across = [one for one in findings(now, before) if one.reference.endswith("before")]
    assert {one.subject for one in across} == {"bsp now", "ssp:3 now", "asp now"}
    speeds = [one for one in across if one.question == SPEED]
    assert all(one.found and one.effect.low > 1.5 for one in speeds)
    assert "bsp now trained on 1." in str(speeds[0])


@pytest.mark.parametrize(
    "older",
    ["at_least = 0.5", "at_least = 0.99", 'metric = "loss"\nat_most = 0.5'],
    ids=["lower", "higher", "another"],
)
def test_an_older_folder_is_judged_by_the_target_of_the_report(tmp_path: Path, older: str):
    """The same runs, which were to reach another target."""
    now = compared(tmp_path, EXPERIMENT)
    target = 'metric = "accuracy"\nat_least = 0.9' if "metric" in older else "at_least = 0.9"
    text = EXPERIMENT.replace(target, older)
    before = Comparison.read(made_folder(tmp_path / "before", text), like=now)
    across = [one for one in findings(now, before) if one.reference.endswith("before")]
    times = [one for one in across if one.question == TARGET]
    assert len(times) == 6
    assert all(one.effect.value == pytest.approx(1.0, rel=0.3) for one in times)
    assert all(one.effect.value == pytest.approx(0.0, abs=0.1) for one in across if one.question == QUALITY)


def test_all_tests_of_a_report_are_corrected_together(tmp_path: Path):
    """With more questions each p is larger."""
    now = compared(tmp_path, EXPERIMENT)
    alone = findings(now)
    more = findings(now, now)
    assert len(more) > len(alone)
    smallest = min(range(len(alone)), key=lambda index: alone[index].p)
    assert more[smallest].p == pytest.approx(
        alone[smallest].effect.p * sum(one.p is not None for one in more)
    )


def short(comparison: Comparison) -> str:
    return " ".join(in_short(comparison, findings(comparison)))


def test_one_sentence_says_who_was_first_and_how_sure_that_is(tmp_path: Path):
    comparison = compared(tmp_path)
    quiet, transient = in_short(comparison, findings(comparison))
    assert quiet.startswith("quiet, 4 workers: accuracy >= 0.9 was reached by ")
    assert transient.endswith("How sure: tests with 5 seeds tell ssp:3, asp from bsp.")
    times = {
        entry.model: sum(entry.best.target_s.values())
        for entry in comparison.entries.values()
        if entry.profile == "transient"
    }
    first = min(times, key=lambda model: times[model])
    assert transient.startswith(f"transient, 4 workers: accuracy >= 0.9 was reached by {first} after ")


def test_how_sure_a_ranking_is_says_nothing_of_another_learning_rate(tmp_path: Path):
    """`asp` is ranked at its best rate, where it is as bsp; at the common one it is slower."""

    def change(run, world: World) -> None:
        world.best_lr = run.lr
        if run.model == "asp" and run.lr == 0.001:
            world.compute_s = 0.06

    text = EXPERIMENT.replace("grid = [0.001]", "grid = [0.0005, 0.001]\ncommon = 0.001")
    comparison = compared(tmp_path, text, change)
    found = findings(comparison)
    mine = [one for one in found if (one.subject, one.question) == ("asp", TARGET) and "quiet" in one.where]
    assert ["common" in one.rates for one in mine] == [False, True]
    assert [one.found for one in mine] == [False, True]
    quiet, _ = in_short(comparison, found)
    assert quiet.endswith("How sure: tests with 5 seeds tell none from bsp.")


def test_with_few_seeds_it_says_whether_they_agree_and_claims_nothing(tmp_path: Path):
    text = short(compared(tmp_path, FEW))
    assert "How sure: 3 seeds are too few for a test; all agree on the direction of " in text
    one = short(compared(tmp_path / "one", FEW.replace("[0, 1, 2]", "[0]")))
    assert "How sure: one seed is too few for a test." in one


def test_who_missed_the_target_is_not_among_those_that_reached_it(tmp_path: Path):
    def change(run, world: World) -> None:
        world.best_lr = 0.1 if run.model == "asp" and run.seed == 1 else 0.001

    text = short(compared(tmp_path, EXPERIMENT, change))
    assert "; was not reached in all seeds by asp (4 of 5)." in text
    assert "asp after" not in text


def test_where_nothing_measured_the_target_speeds_are_named(tmp_path: Path):
    """As of a simulation that trains nothing."""

    def change(run, world: World) -> None:
        world.evaluates = False

    text = short(compared(tmp_path, EXPERIMENT, change))
    assert "quiet, 4 workers: samples per second, the fastest first: " in text
    assert "not reached" not in text
    assert "tests with 5 seeds tell " in text


def test_without_a_target_the_fastest_is_named(tmp_path: Path):
    text = short(
        compared(tmp_path, EXPERIMENT.replace('metric = "accuracy"\nat_least = 0.9', "samples = 100"))
    )
    assert "quiet, 4 workers: samples per second, the fastest first: " in text


def test_programs_that_took_the_cores_are_said(tmp_path: Path):
    def busy(run, world: World) -> None:
        world.others = 0.4 if run.model == "asp" else 0.0

    said = " ".join(sentences(compared(tmp_path, FEW, busy)))
    assert (
        "Other programs took 13% of the cores' time while runs went on, and up to 40% in one of them" in said
    )
    assert "Other programs" not in " ".join(sentences(compared(tmp_path / "quiet", FEW)))


def test_a_simulation_says_that_it_is_one_and_is_compared_with_what_was_measured(tmp_path: Path):
    facts = replace(FACTS, versions=FACTS.versions | {"simulated": "in virtual time; costs as given"})
    simulated = compared(tmp_path, FEW, facts=facts)
    measured = compared(tmp_path / "measured", FEW)
    assert any(one.startswith("The runs are simulated, in virtual time") for one in sentences(simulated))
    assert not any("simulated" in one for one in sentences(measured))
    across = [one for one in findings(simulated, measured) if one.reference.endswith(" measured")]
    assert {one.subject for one in across} == {"bsp simulated", "ssp:3 simulated", "asp simulated"}


def test_seeds_that_differ_in_direction_are_said_to(tmp_path: Path):
    def change(run, world: World) -> None:
        world.compute_s = 0.04 if run.model == "asp" and run.seed == 1 else 0.02

    speed = next(
        one
        for one in findings(compared(tmp_path, FEW, change))
        if one.subject == "asp" and one.question == SPEED and "transient" in one.where
    )
    assert speed.effect.low < 1 < speed.effect.high
    assert "3 seeds, which do not agree on the direction and are too few for a test" in str(speed)
