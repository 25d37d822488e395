"""What the demo needs before it runs, and what it must have reached at its end."""

from pathlib import Path

import pytest

from ps_lab import demo
from ps_lab.errors import DemoFailed
from ps_lab.experiments.experiment import read
from ps_lab.experiments.plan import runs
from ps_wire.errors import UsageError

from .compare.made import EXPERIMENT, World, made_folder, made_run

FEW = EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0]")


def test_it_shows_three_models_with_stragglers_and_three_seeds() -> None:
    experiment, _ = read(demo.find_experiment())
    assert experiment.models == ("bsp", "ssp:3", "asp")
    assert [profile.quiet for profile in experiment.profiles] == [False]
    assert len(runs(experiment)) == 9
    assert str(experiment.stop.target) == "accuracy >= 0.97"
    assert experiment.evaluation is not None


def test_its_folder_is_new_and_has_the_time_in_its_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = demo.make_folder(demo.find_experiment(), None)
    assert folder.path.name.startswith("demo-2")
    assert (tmp_path / folder.path / "experiment.json").is_file()


def test_a_folder_with_runs_or_other_files_is_not_taken(tmp_path: Path) -> None:
    experiment = demo.find_experiment()
    folder = demo.make_folder(experiment, tmp_path / "out")
    made_run(folder.runs[0])
    with pytest.raises(DemoFailed, match="runs of an earlier demo: take another folder"):
        demo.make_folder(experiment, tmp_path / "out")
    with pytest.raises(UsageError, match="has other files"):
        demo.make_folder(experiment, tmp_path)


def test_every_model_has_to_reach_the_target_in_the_mean(tmp_path: Path) -> None:
    demo.check(made_folder(tmp_path / "good", FEW))

    def far(run, world: World) -> None:
        world.best_lr = 0.1 if run.model == "asp" else 0.001

    low = made_folder(tmp_path / "low", FEW, far)
    with pytest.raises(DemoFailed, match=r"must reach accuracy >= 0\.9: asp \(quiet\) came to 0\.\d+, asp"):
        demo.check(low)
    missing = made_folder(tmp_path / "missing", FEW, only=lambda run: run.model != "bsp")
    with pytest.raises(DemoFailed, match=r"bsp \(quiet\) came to nan"):
        demo.check(missing)


def test_the_groups_have_a_row_and_have_to_learn() -> None:
    said = ["epoch 9: loss 0.1", "test accuracy 0.9800"]
    row = demo.groups_row(said, 12.3)
    assert row == "bsp, 2 groups of 2 ranks: test accuracy 0.9800 after 10 epochs, in 12 s with its start"
    assert demo.GROUPS.script.is_file()
    for few, what in ((["test accuracy 0.5000"], "came to 0.5000"), (said[:1], "said no accuracy")):
        with pytest.raises(DemoFailed, match=f"2 groups of 2 ranks must reach accuracy >= 0.95, and {what}"):
            demo.groups_row(few, 1.0)


def test_the_pipeline_has_a_row_and_has_to_learn() -> None:
    said = ["step 20: loss 3.100", "step 40: loss 2.700"]
    row = demo.pipeline_row(said, 12.3)
    assert row == "bsp, a pipeline of 2 stages: loss 2.700 after 40 steps on text, in 12 s with its start"
    assert demo.PIPELINE.script.is_file()
    for few, what in ((["step 20: loss 4.600"], "came to 4.600"), ([], "said no loss")):
        with pytest.raises(DemoFailed, match=f"a pipeline of 2 stages must reach a loss <= 3.2, and {what}"):
            demo.pipeline_row(few, 1.0)
