"""`ps-lab simulate`: options, experiments, and what makes no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ps_lab.cli import app
from ps_lab.compare.facts import gather
from ps_lab.compare.folder import Folder
from ps_lab.compare.laws import Holds, verdicts
from ps_lab.compare.outcome import Ending, RunOutcome
from ps_lab.compare.results import read_runs
from ps_lab.experiments.experiment import parse
from ps_lab.simulate import measured, records
from ps_wire.errors import UsageError

EXPERIMENT = """
name = "small"
script = "train.py"
models = ["bsp", "ssp:2", "asp"]
baselines = ["none"]
servers = 2
workers = 4
seeds = [0, 1]

[stop]
samples = 640

[learning_rates]
grid = [0.05, 0.2]
common = 0.05

[evaluation]
script = "train.py"
every_s = 0.2

[[profiles]]
name = "calm"

[[profiles]]
name = "transient"
straggler = "transient:p=0.2,f=4"

[[profiles]]
name = "bursty"
straggler = "bursty:p=0.2,length=5,f=3"

[[profiles]]
name = "crash"
straggler = "crash:step=3,restart=0,worker=1"

[[profiles]]
name = "link"
straggler = "slow_link:f=8,worker=2"

[[profiles]]
name = "skew"
arguments = ["--label-skew", "0.5"]
"""


def command(*words: str) -> str:
    outcome = CliRunner().invoke(app, ["simulate", *words], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def summaries(*words: str) -> list[dict]:
    return [json.loads(line) for line in command(*words, "--json").splitlines()]


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    path = tmp_path / "small.toml"
    path.write_text(EXPERIMENT)
    return path


def test_models_are_compared_in_one_table():
    """One row each, with what theory says where it says something."""
    shown = command(
        *(
            "--consistency",
            "bsp",
            "--consistency",
            "ssp:3",
            "--steps",
            "50",
            "--straggler",
            "transient:p=0.1,f=4",
        )
    )
    assert "bsp" in shown
    assert "ssp:3" in shown
    assert "transient:p=0.1,f=4" in shown


def test_figures_for_programs():
    """Throughput, staleness, its bound, and where the time went."""
    bsp, ssp = summaries("--consistency", "bsp", "--consistency", "ssp:3", "--straggler", "constant:f=4")
    assert bsp["step_s"] == pytest.approx(bsp["theory_s"]) == pytest.approx(0.2)
    assert bsp["steps_per_s"] == pytest.approx(4 / 0.2)
    assert ssp["tau"]["max"] <= ssp["tau_bound"] == 7 * 3
    assert ssp["split"]["gate"] > 0.5
    assert sum(ssp["split"].values()) == pytest.approx(1.0)
    assert ssp["max_gap"] == 4


def test_costs_come_from_options():
    """Milliseconds, gigabits and gigabytes become a step's time."""
    (found,) = summaries(
        *(
            "--num-workers",
            "1",
            "--steps",
            "10",
            "--compute-ms",
            "10",
            "--table-mb",
            "100",
            "--latency-ms",
            "2",
        ),
        *("--link-gbit-s", "8", "--take-gb-s", "10", "--apply-gb-s", "5"),
    )
    assert found["step_s"] == pytest.approx(0.010 + 2 * (0.1 + 0.002) + 0.010 + 0.020)


def test_a_time_ends_runs_in_place_of_steps():
    """All models get the same time."""
    found = summaries("--consistency", "bsp", "--consistency", "asp", "--seconds", "3")
    assert [it["duration_s"] for it in found] == [3.0, 3.0]


def test_a_model_is_trained_with_gradients_that_are_late():
    """Equal updates, later gradients: a larger loss, and a staleness that is in the figures."""
    fresh, late = (
        summaries(*("--learn", "logistic", "--steps", "60", "--lr", "0.5", "--simulate-staleness", tau))[0]
        for tau in ("0", "20")
    )
    assert late["metrics"]["train_loss"] > fresh["metrics"]["train_loss"]
    assert (late["tau"]["mean"], late["tau"]["max"], late["tau_bound"]) == (20.0, 20, 20)


def test_an_experiment_is_simulated_into_run_folders(file, tmp_path):
    """A folder of `ps-lab compare`: records, result and facts of each run, but of no baseline."""
    out = tmp_path / "out"
    shown = command(str(file), "--out", str(out), "--learn", "logistic", "--latency-ms", "2")
    assert "none has no servers" in shown
    folder = Folder.open(out)
    assert {place.run.model for place in folder.missing()} == {"none"}
    done = [place for place in folder.runs if place.run.model != "none"]
    assert len(done) == 3 * 2 * 2 * 6
    for place in done:
        outcome = place.outcome()
        assert outcome.ending is Ending.FINISHED
        assert outcome.metrics["accuracy"] > 0
        assert outcome.evaluations[-1].unix_s == outcome.ended_unix_s
        assert place.facts().versions["simulated"].startswith("in virtual time; costs as given")
        steps = [step for it in records.read(place.records) for step in it.steps]
        assert sum(it.received for it in outcome.counts) == 2 * len(steps)
        assert {it.samples for it in steps} == {16}
    took = {
        (place.run.model, place.run.profile.name): place.outcome().ended_unix_s
        for place in done
        if place.run.seed == 0
    }
    assert took["bsp", "skew"] == took["bsp", "calm"] < took["bsp", "transient"]
    slowed = [it.profile.straggler for it in (place.run for place in done) if it.profile.name == "link"]
    assert {str(it) for it in slowed} == {"slow_link:f=8,worker=2"}
    linked = next(it for it in done if (it.run.model, it.run.profile.name) == ("asp", "link"))
    waits = {it.header.worker: it.steps[-1].pull_s for it in records.read(linked.records)}
    assert max(waits, key=lambda worker: waits[worker]) == 2


def test_laws_hold_on_simulated_records(file, tmp_path):
    """What checks recorded runs finds nothing violated, and law 12 held in each."""
    out = tmp_path / "out"
    command(str(file), "--out", str(out), "--table-mb", "0.1", "--latency-ms", "1")
    found = [(it.run.model, verdict) for it in read_runs(Folder.open(out)) for verdict in verdicts(it)]
    assert not [(model, it) for model, it in found if it.holds is Holds.NO]
    held = {(model, it.law) for model, it in found if it.holds is Holds.YES}
    assert held >= {
        ("bsp", 5),
        ("ssp:2", 5),
        ("ssp:2", 6),
        ("asp", 7),
        ("bsp", 12),
        ("ssp:2", 12),
        ("asp", 12),
    }


def test_finished_runs_are_not_simulated_again(file, tmp_path):
    """The second time there is nothing to do."""
    out = tmp_path / "out"
    command(str(file), "--out", str(out))
    results = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    assert len(results) == 72
    command(str(file), "--out", str(out))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("result.json")} == results


def test_what_was_measured_is_not_filled_up_with_simulated_runs(file, tmp_path):
    out = tmp_path / "out"
    folder = Folder.make(out, parse(file.read_text()), file.read_text())
    place = folder.runs[0]
    place.begin(gather(tmp_path / "train.py"))
    place.end(RunOutcome(ending=Ending.FINISHED, started_unix_s=0.0, ended_unix_s=1.0))
    outcome = CliRunner().invoke(app, ["simulate", str(file), "--out", str(out)])
    assert isinstance(outcome.exception, UsageError)
    assert "has measured runs, to which no simulated ones are added" in str(outcome.exception)
    assert len(folder.missing()) == len(folder.runs) - 1


def test_costs_are_fitted_from_a_recorded_run(file, tmp_path):
    """Records of one run are enough to simulate others."""
    out = tmp_path / "out"
    command(str(file), "--out", str(out), "--compute-ms", "20", "--latency-ms", "5")
    calm = next(it for it in Folder.open(out).runs if it.run.model == "asp" and it.run.profile.name == "calm")
    (found,) = summaries("--consistency", "bsp", "--steps", "10", "--costs-from", str(calm.records))
    assert found["step_s"] == pytest.approx(0.020 + 2 * 0.005)


def test_costs_on_shared_cores_are_fitted_from_runs_with_processor_times(file, tmp_path):
    """What lies beside the records is read: its servers, its stragglers, and what the servers took."""
    out = tmp_path / "out"
    command(str(file), "--out", str(out), "--compute-ms", "20")
    calm = next(it for it in Folder.open(out).runs if it.run.model == "asp" and it.run.profile.name == "calm")
    words = ("--consistency", "bsp", "--steps", "50", "--cores", "2", "--costs-from", str(calm.path))
    with pytest.raises(UsageError, match="needs runs of ps-lab compare that have recorded processor times"):
        command(*words)
    for path in calm.records.iterdir():
        header, *steps = path.read_text().splitlines(keepends=True)
        path.write_text(header + "".join(it.replace('"cpu_s":null', '"cpu_s":0.01') for it in steps))
    result = calm.path / "result.json"
    result.write_text(
        result.read_text().replace('"cpu_s": {}', '"cpu_s": {"server 0": 0.001, "evaluator": 9}')
    )
    (run,) = measured.read([calm.path])[1]
    assert (run.num_shards, run.server_cpu_s, run.has_processor_times) == (2, 0.001, True)
    (found,) = summaries(*words)
    assert found["step_s"] == pytest.approx(0.020, rel=0.05)  # as asp: 4 x 10 ms on two cores
    (calm.path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="is no run of a comparison: KeyError"):
        command(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--consistency", "psp"), "unknown consistency 'psp'"),
        (("--straggler", "slow"), "unknown straggler 'slow'"),
        (("--table-mb", "-1"), "--table-mb must be >= 0"),
        (("--link-gbit-s", "0"), "--link-gbit-s must be > 0, got 0"),
        (("--compute-ms", "nan"), "compute_s must be >= 0"),
        (("--num-workers", "0"), "num_workers must be from 1"),
        (("--simulate-staleness", "3", "--consistency", "asp"), "needs bsp, got asp"),
        (("--out", "x"), "--out needs an experiment"),
        (("missing.toml",), "an experiment needs --out"),
        (("missing.toml", "--out", "x"), "cannot read missing.toml"),
        (("--costs-from", "."), "has no files of records"),
    ],
)
def test_what_makes_no_sense_is_refused(words, message, monkeypatch, tmp_path):
    """The option is named, and what is valid."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        CliRunner().invoke(app, ["simulate", *words], catch_exceptions=False)
    assert message in refused.value.message
