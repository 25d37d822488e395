"""The figures of a run follow from its records, by arithmetic that a reader can repeat."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from ps_lab.compare.folder import Folder
from ps_lab.compare.metrics import PARTS, RunFigures, of_all, spread
from ps_lab.compare.outcome import EvaluationPoint, WorkerCounts
from ps_lab.compare.results import RunData, read_recording, read_runs
from ps_lab.experiments.experiment import Target
from ps_wire.errors import UsageError
from ps_worker.recording.columns import RecordHeader, StepRecord, encode_header

from .made import EXPERIMENT, START_UNIX_S, World, made_folder

TARGET = Target(metric="accuracy", value=0.9, larger_is_better=True)
LOSS = Target(metric="loss", value=0.5, larger_is_better=False)


def read(path: Path, change=lambda run, world: None, only=lambda run: run.seed == 0) -> dict[str, RunData]:
    """The runs with seed 0, by model and profile."""
    folder = made_folder(path, EXPERIMENT, change, only=only)
    runs = read_runs(Folder.open(folder.path))
    return {f"{data.run.model} {data.run.profile.name}": data for data in runs if data.ended}


def test_time_updates_and_samples_are_counted(tmp_path: Path):
    """A synchronous update is made of all workers' gradients, an asynchronous one of a single gradient."""
    runs = read(tmp_path)
    bsp, asp = (RunFigures(runs[f"{model} quiet"], TARGET) for model in ("bsp", "asp"))
    assert bsp.updates == 60
    assert asp.updates == 240
    assert bsp.samples == asp.samples == 240 * 16
    assert np.all(np.diff(bsp.time_s) >= 0)
    assert bsp.wall_s == pytest.approx(float(bsp.time_s[-1]))
    assert bsp.samples_per_s == pytest.approx(bsp.samples / bsp.wall_s)
    assert asp.updates_per_s == pytest.approx(240 / asp.wall_s)


def test_the_parts_of_the_time_are_all_of_it(tmp_path: Path):
    one = RunFigures(read(tmp_path)["bsp transient"], TARGET)
    split = one.time_split()
    whole = sum(step.ended_s - step.started_s for mine in one.recorded for step in mine.steps)
    assert split.keys() == set(PARTS)
    assert sum(split.values()) == pytest.approx(whole)
    assert sum(sum(one.time_split(worker).values()) for worker in one.workers) == pytest.approx(whole)
    assert split["gate"] > 0
    assert sum(one.contribution(worker) for worker in one.workers) == pytest.approx(1.0)


def test_the_parts_of_a_baselines_time_are_numbers_though_it_has_no_gate(tmp_path: Path):
    text = EXPERIMENT.replace('["bsp", "ssp:3", "asp"]', '[]\nbaselines = ["ddp"]')
    folder = made_folder(tmp_path / "made", text, only=lambda run: run.seed == 0)
    split = RunFigures(read_runs(folder)[1], TARGET).time_split()
    assert split["gate"] == 0
    assert split["pull"] > 0


def test_a_target_is_reached_when_it_is_evaluated(tmp_path: Path):
    one = RunFigures(read(tmp_path)["bsp quiet"], TARGET)
    first = next(at for at, value in one.evaluated if value >= 0.9)
    assert one.target_s == first
    assert one.quality == one.evaluated[-1][1]
    assert one.judged_by == "held-out evaluation"
    assert one.held_s == pytest.approx(0.12)


def test_without_evaluations_it_is_the_running_mean_of_what_is_logged(tmp_path: Path):
    """A single lucky batch reaches nothing."""
    one = RunFigures(read(tmp_path)["bsp quiet"], LOSS)
    at = one.target_s
    assert at is not None
    values = one.loss.values
    place = int(np.searchsorted(one.loss.time_s, at))
    assert any(abs(values[index - 9 : index + 1].mean()) <= 0.5 for index in range(place, place + 4))
    assert one.judged_by == "running mean of what workers logged"
    assert one.quality == pytest.approx(float(values[-10:].mean()))


def test_what_is_logged_once_at_the_end_is_dated_to_the_end(tmp_path: Path):
    def change(run, world: World) -> None:
        world.evaluates = False

    data = read(tmp_path, change)["bsp quiet"]
    one = RunFigures(data, TARGET)
    assert one.quality is None
    assert one.target_s is None
    object.__setattr__(data.outcome, "metrics", {"accuracy": 0.95})
    one = RunFigures(data, TARGET)
    assert one.quality == 0.95
    assert one.target_s == one.wall_s
    assert one.judged_by == "what the script logged last"


def test_a_run_that_diverges_reaches_nothing_and_says_when(tmp_path: Path):
    def change(run, world: World) -> None:
        world.nan_from = 30

    one = RunFigures(read(tmp_path, change)["asp quiet"], LOSS)
    assert one.diverged
    assert one.target_s is None
    assert 0 < one.diverged_s < one.wall_s


def test_a_run_whose_last_evaluation_is_no_number_diverged(tmp_path: Path):
    """Though its script logs no loss."""

    def change(run, world: World) -> None:
        world.loss = False

    data = read(tmp_path, change)["asp quiet"]
    points = [
        EvaluationPoint(unix_s=START_UNIX_S + at, held_s=0.0, values={"accuracy": value})
        for at, value in ((0.1, 0.95), (0.2, math.nan))
    ]
    object.__setattr__(data.outcome, "evaluations", tuple(points[:1]))
    assert not RunFigures(data, TARGET).diverged
    object.__setattr__(data.outcome, "evaluations", tuple(points))
    one = RunFigures(data, TARGET)
    assert one.diverged
    assert one.target_s is None


def test_a_script_that_logs_no_loss_has_no_curve(tmp_path: Path):
    def change(run, world: World) -> None:
        world.loss = False

    one = RunFigures(read(tmp_path, change)["bsp quiet"], None)
    assert one.loss.values.size == 0
    assert one.quality is None
    assert not one.diverged
    assert one.samples_per_s > 0


def test_a_run_without_records_has_no_figures_and_no_errors(tmp_path: Path):
    def change(run, world: World) -> None:
        world.records = False

    one = RunFigures(read(tmp_path, change)["bsp quiet"], TARGET)
    assert one.wall_s is None
    assert one.samples_per_s is None
    assert one.updates == one.samples == one.total("dropped") == 0
    assert one.tau is None
    assert one.evaluated == ()
    assert one.worker_seconds == 0
    assert one.recoveries() == ()
    assert sum(one.time_split().values()) == 0


def test_a_fault_is_followed_until_its_worker_is_back(tmp_path: Path):
    def change(run, world: World) -> None:
        world.faults = (("pause", 1, 0.5), ("crash", 2, 1e6))

    one = RunFigures(read(tmp_path, change)["asp quiet"], TARGET)
    back, gone = one.recoveries()
    mine = next(r for r in one.recorded if r.header.worker == 1)
    after = [end for end in mine.ended_unix_s if end > back.fault.unix_s]
    assert back.back_s == pytest.approx(min(after) - back.fault.unix_s)
    assert 0 < back.stalled_s <= back.back_s
    assert gone.back_s is None
    assert gone.stalled_s == 0


def test_a_distribution_has_its_mean_and_its_tail():
    found = spread(np.array([0.0] * 98 + [5.0, 7.0, math.nan]))
    assert found is not None
    assert (found.count, found.p99, found.max) == (100, 5, 7)
    assert found.mean == pytest.approx(0.12)
    assert spread(np.array([math.nan])) is None


def test_a_tail_over_several_runs_is_of_all_their_pushes():
    @dataclass
    class Run:
        values: list[float]

        def column(self, name: str) -> np.ndarray:
            assert name == "tau"
            return np.array(self.values)

    found = of_all([Run([0.0] * 9 + [50.0]), Run([1.0] * 190)], "tau")
    assert found is not None
    assert (found.p99, found.max, found.count) == (1, 50, 200)
    assert of_all([], "tau") is None


def test_a_killed_workers_last_line_is_dropped(tmp_path: Path):
    def change(run, world: World) -> None:
        world.killed = 2

    data = read(tmp_path, change)["asp quiet"]
    whole = {one.header.worker: one.whole for one in data.recordings}
    assert whole == {0: True, 1: True, 2: False, 3: True}
    assert 20 < len(data.recordings[2].steps) < 50


def test_what_is_no_record_is_named_with_file_and_line(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    header = RecordHeader(
        unix_s=1.0, job="a", worker=0, incarnation=1, consistency="asp", num_workers=1, host="h"
    )
    path.write_text(encode_header(header) + '{"step": 1}\n')
    with pytest.raises(UsageError, match=r"a\.jsonl, line 2: column 'abstained'|a\.jsonl, line 2: column"):
        read_recording(path)
    path.write_text(encode_header(header) + "x" * 100_000)
    with pytest.raises(UsageError, match="line 2: a line has at most"):
        read_recording(path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(UsageError, match="no UTF-8"):
        read_recording(path)
    path.write_text('{"form')
    assert read_recording(path) is None
    path.write_bytes(encode_header(header).encode() + '{"metrics":{"\u03bc'.encode()[:-1])
    cut = read_recording(path)
    assert cut is not None, "a process may be killed within a character"
    assert not cut.whole
    assert cut.steps == ()


def test_a_push_that_was_applied_nowhere_is_no_update(tmp_path: Path):
    data = read(tmp_path)["asp quiet"]
    steps = data.recordings[0].steps
    lost = [
        StepRecord(
            **{
                **{name: getattr(step, name) for name in StepRecord.__slots__},
                "tau": None,
                "version_applied": None,
                "dropped": 2,
            }
        )
        for step in steps
    ]
    object.__setattr__(data.recordings[0], "steps", tuple(lost))
    object.__setattr__(data.outcome, "counts", ())
    one = RunFigures(data, TARGET)
    assert one.updates == 180
    assert one.contribution(0) == 0
    assert one.contribution(1) == pytest.approx(1 / 3)
    assert one.dropped == 120


def test_what_backup_workers_lose_is_as_the_servers_counted_it(tmp_path: Path):
    """Whether a push is in its step is not known when it is acknowledged: its record has no tau."""
    data = read(tmp_path)["bsp quiet"]
    for recording in data.recordings:
        unknown = [replace(step, tau=None, version_applied=None) for step in recording.steps]
        object.__setattr__(recording, "steps", tuple(unknown))
    counts = [
        WorkerCounts(worker=worker, received=120, applied=120 - lost, dropped=lost, abstained=0)
        for worker, lost in enumerate((0, 60, 0, 60))
    ]
    object.__setattr__(data.outcome, "counts", tuple(counts))
    one = RunFigures(data, TARGET)
    assert one.updates == 60
    assert [one.contribution(worker) for worker in one.workers] == pytest.approx([1 / 3, 1 / 6, 1 / 3, 1 / 6])
    assert one.samples == 3 * 60 * 16  # of four workers, two of whom lost half
    assert one.loss.samples[-1] == one.samples
    assert one.dropped == 120
