"""The runs of an experiment: all of them, in an order that is fair to what a budget leaves."""

from itertools import groupby

from ps_lab.experiments.experiment import parse
from ps_lab.experiments.plan import runs

TEXT = """
name = "plan"
script = "train.py"
arguments = ["--epochs", "3"]
models = ["bsp", "ssp:3", "asp"]
baselines = ["ddp"]
workers = [2, 4]
seeds = [7, 8]
repeats = 2
[learning_rates]
grid = [0.1, 0.2]
common = 0.2
models.asp = [0.05, 0.1, 0.2]
[optimizer]
models.asp = ["--momentum", "0"]
[[profiles]]
name = "quiet"
[[profiles]]
name = "slow one"
straggler = "constant:f=4,worker=1"
arguments = ["--label-skew", "0.5"]
"""


def test_every_combination_runs_once():
    plan = runs(parse(TEXT))
    assert len(plan) == (3 * 2 + 3) * 2 * 2 * 2 * 2  # rates, workers, profiles, seeds, repeats
    assert len({run.id for run in plan}) == len(plan)


def test_seeds_are_outermost_and_the_common_rate_comes_first():
    """What a budget leaves is whole comparisons with fewer seeds, and of those the ones at one rate."""
    plan = runs(parse(TEXT))
    assert [key for key, _ in groupby((run.repeat, run.seed) for run in plan)] == [
        (0, 7),
        (0, 8),
        (1, 7),
        (1, 8),
    ]
    first = plan[: 4 * 2 * 2]
    assert {run.lr for run in first} == {0.2}
    assert [run.model for run in first[:4]] == ["ddp", "bsp", "ssp:3", "asp"]


def test_who_begins_changes_from_seed_to_seed():
    plan = runs(parse(TEXT))
    assert [next(run.model for run in plan if run.seed == seed) for seed in (7, 8)] == ["ddp", "bsp"]


def test_a_run_has_all_arguments_of_its_script():
    run = next(run for run in runs(parse(TEXT)) if run.model == "asp" and run.lr == 0.05 and run.seed == 8)
    assert run.arguments == ("--epochs", "3", "--momentum", "0", "--lr", "0.05", "--seed", "8")


def test_an_id_is_of_the_exact_configuration_and_can_be_a_folder():
    """It does not depend on the other runs, so a comparison that goes on finds what it has done."""
    whole = {run.id for run in runs(parse(TEXT))}
    fewer = {run.id for run in runs(parse(TEXT.replace('["bsp", "ssp:3", "asp"]', '["bsp", "asp"]')))}
    assert fewer < whole
    other = {run.id for run in runs(parse(TEXT.replace('"3"', '"4"')))}
    assert not other & whole
    assert all("/" not in name and " " not in name and len(name) < 130 for name in whole)
    assert any(name.startswith("ssp-3_slow-one_lr0.2_w4_seed7_r0-") for name in whole)


def test_a_script_that_takes_no_seed_gets_none():
    (run,) = runs(parse('name="a"\nscript="b"\nmodels=["bsp"]\nseed_argument=""'))
    assert run.arguments == ()
    assert run.lr is None
    assert str(run) == "bsp, none, 4 workers, seed 0"


def test_a_profile_adds_arguments_to_those_of_every_run():
    for run in runs(parse(TEXT)):
        assert (run.arguments[-6:-4] == ("--label-skew", "0.5")) == (run.profile.name == "slow one")
