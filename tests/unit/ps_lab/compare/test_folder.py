"""The folder of a comparison: it belongs to one experiment, and no run that has ended is done again."""

import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ps_lab.compare.comparing import Choice, compare
from ps_lab.compare.facts import gather
from ps_lab.compare.folder import Folder, write_text
from ps_lab.compare.outcome import (
    Ending,
    EvaluationPoint,
    Fault,
    RunOutcome,
    WorkerCounts,
    decode,
    encode,
)
from ps_lab.errors import OutputFailed
from ps_lab.experiments.experiment import parse
from ps_wire.errors import UsageError

TEXT = 'name = "one"\nscript = "train.py"\nmodels = ["bsp", "asp"]\nseeds = [0, 1]\n'
OUTCOME = RunOutcome(
    ending=Ending.FINISHED,
    started_unix_s=100.0,
    ended_unix_s=130.0,
    metrics={"accuracy": 0.97, "worst": math.nan},
    evaluations=(EvaluationPoint(unix_s=110.0, held_s=0.1, values={"accuracy": 0.9, "loss": math.inf}),),
    counts=(WorkerCounts(worker=0, received=4, applied=3, dropped=1, abstained=0),),
    cpu_s={"worker 0": 3.0},
    other_cpu_s=1.5,
    faults=(Fault(kind="crash", worker=1, unix_s=111.0),),
)


def made(path: Path, text: str = TEXT) -> Folder:
    return Folder.make(path / "out", parse(text), text)


def facts_of(path: Path):
    script = path / "train.py"
    script.write_text("pass")
    return gather(script)


def test_an_outcome_is_read_back():
    back = decode(encode(OUTCOME))
    assert encode(back) == encode(OUTCOME)
    assert math.isnan(back.metrics["worst"])
    assert back.evaluations[0].values["loss"] == math.inf
    assert back.counts == OUTCOME.counts
    assert back.ending is Ending.FINISHED


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"format": 2}', encode(OUTCOME).replace("finished", "gone"), '{"format": 1}']
)
def test_what_is_no_outcome_is_refused(text):
    with pytest.raises(UsageError):
        decode(text)


def test_a_run_that_has_ended_is_not_repeated(tmp_path: Path):
    """Also by a process that opens the folder later; half a run is done again from its beginning."""
    facts = facts_of(tmp_path)
    folder = made(tmp_path)
    first, second = folder.missing()[:2]
    first.begin(facts)
    (first.records / "one.jsonl").write_text("old")
    first.end(OUTCOME)
    second.begin(facts)
    (second.records / "half.jsonl").write_text("half")

    again = made(tmp_path)
    assert [run.run.id for run in again.missing()] == [run.run.id for run in folder.runs[1:]]
    with pytest.raises(UsageError, match="not repeated"):
        again.runs[0].begin(facts)
    again.runs[1].begin(facts)
    assert list(again.runs[1].records.iterdir()) == []
    assert again.runs[0].outcome() is not None
    assert again.runs[1].outcome() is None
    assert again.runs[0].facts() == facts
    assert again.runs[2].facts() is None


def test_a_folder_of_another_experiment_is_refused_by_name(tmp_path: Path):
    made(tmp_path)
    with pytest.raises(UsageError, match=r"belongs to the experiment 'one'.*in: name, seeds"):
        made(tmp_path, TEXT.replace('"one"', '"two"').replace("[0, 1]", "[0]"))
    assert made(tmp_path, TEXT + "budget_s = 5").experiment.budget_s == 5


def test_a_folder_with_other_files_is_refused(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="other files"):
        made(tmp_path)


def test_what_somebody_left_who_was_killed_at_the_start_is_no_other_file(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".experiment.json.4711").write_text("{")
    assert made(tmp_path).missing()
    assert Folder.open(tmp_path / "out").missing()


@pytest.mark.parametrize("simulated", [False, True])
def test_simulated_and_measured_runs_are_not_mixed(tmp_path: Path, *, simulated: bool):
    facts = facts_of(tmp_path)
    folder = made(tmp_path)
    for kind in (False, True):
        folder.check_kind(simulated=kind)
    first, second = folder.missing()[:2]
    first.begin(replace(facts, versions={"simulated": "in virtual time"}) if simulated else facts)
    folder.check_kind(simulated=not simulated)  # it has not ended, and is done again
    first.end(OUTCOME)
    second.begin(facts)
    folder.check_kind(simulated=simulated)
    with pytest.raises(UsageError, match="Take another folder"):
        folder.check_kind(simulated=not simulated)


def test_no_run_is_measured_beside_simulated_ones(tmp_path: Path):
    facts = replace(facts_of(tmp_path), versions={"simulated": "in virtual time"})
    folder = made(tmp_path)
    folder.runs[0].begin(facts)
    folder.runs[0].end(OUTCOME)
    with pytest.raises(UsageError, match="has simulated runs, to which no measured ones are added"):
        compare(folder, tmp_path, Choice(), Console())


def test_a_damaged_folder_is_refused_by_its_file(tmp_path: Path):
    folder = made(tmp_path)
    file = folder.path / "experiment.json"
    whole = json.loads(file.read_text())
    for values, says in [
        ({**whole, "toml": TEXT + "repeats = 9"}, "fingerprint"),
        ({**whole, "format": 2}, "another release"),
        ({**whole, "toml": None}, "another release"),
    ]:
        file.write_text(json.dumps(values))
        with pytest.raises(UsageError, match=says):
            Folder.open(folder.path)
    file.write_text("{")
    with pytest.raises(UsageError, match=r"experiment\.json"):
        Folder.open(folder.path)
    with pytest.raises(UsageError, match="no folder of a comparison"):
        Folder.open(tmp_path)


def test_a_damaged_run_is_refused_by_its_file(tmp_path: Path):
    run = made(tmp_path).runs[0]
    run.begin(facts_of(tmp_path))
    config = json.loads((run.path / "config.json").read_text())
    (run.path / "config.json").write_text(json.dumps({**config, "id": "other"}))
    with pytest.raises(UsageError, match="is of the run 'other'"):
        run.facts()
    (run.path / "config.json").write_text(json.dumps({**config, "facts": {"host": "here"}}))
    with pytest.raises(UsageError, match="damaged"):
        run.facts()
    (run.path / "result.json").write_text("{")
    with pytest.raises(UsageError, match=r"result\.json"):
        run.outcome()


def test_one_process_adds_runs_at_a_time(tmp_path: Path):
    folder = made(tmp_path)
    with folder.held(), pytest.raises(UsageError, match="another process"), made(tmp_path).held():
        pass
    with made(tmp_path).held():
        pass


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "file"
    write_text(path, "first")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_the_facts_name_machine_versions_and_script(tmp_path: Path):
    facts = facts_of(tmp_path)
    assert facts.cores >= 1
    assert facts.versions["torch"]
    assert len(facts.script_sha256) == 64
    here = gather(Path(__file__))
    assert here.commit == "" or len(here.commit) == 40


def test_who_may_read_other_files_here_may_read_those_of_a_comparison(tmp_path: Path):
    folder = made(tmp_path)
    other = tmp_path / "other"
    other.write_text("")
    assert (folder.path / "experiment.json").stat().st_mode == other.stat().st_mode


def test_a_result_that_finds_no_room_is_none_and_the_run_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = made(tmp_path)
    run = folder.runs[0]
    run.begin(facts_of(tmp_path))

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputFailed, match=r"result\.json cannot be written: No space left on device"):
        run.end(OUTCOME)
    assert run.outcome() is None
    assert run in folder.missing()
    assert sorted(path.name for path in run.path.iterdir()) == ["config.json", "records"]
