"""A recorded run, played back: by hand-made records, whose status is known at every moment."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from ps_lab.compare.outcome import Ending, EvaluationPoint, Fault, RunOutcome, encode
from ps_lab.top.playback import frames, open_playback
from ps_wire.errors import UsageError
from ps_worker.recording import columns


def step(number: int, started_s: float, **given: Any) -> columns.StepRecord:
    """Of a second, half of which it computes, and the other half waits at the gate."""
    values: dict[str, Any] = {
        "clock": number,
        "version_read": number,
        "version_applied": number,
        "tau": 0,
        "gap": 1,
        "ended_s": started_s + 1.0,
        "compute_s": 0.5,
        "push_s": 0.0,
        "gate_s": 0.5,
        "pull_s": 0.0,
        "bytes_up": 8,
        "bytes_down": 16,
        "samples": 32,
        "loss": 1.0 / (number + 1),
        "metrics": {},
        "dropped": 0,
        "abstained": 0,
        "retried": 0,
        "cpu_s": 0.1,
    }
    return columns.StepRecord(step=number, started_s=started_s, **values | given)


def write(folder: Path, worker: int, *steps: columns.StepRecord, incarnation: int = 1, job: str = "digits"):
    header = columns.RecordHeader(
        unix_s=100.0,
        job=job,
        worker=worker,
        incarnation=incarnation,
        consistency="ssp:3",
        num_workers=2,
        host="here",
    )
    folder.mkdir(parents=True, exist_ok=True)
    lines = [columns.encode_header(header), *map(columns.encode, steps)]
    (folder / columns.file_name(header)).write_text("".join(lines))


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """Worker 0 takes two steps of a second each; worker 1 one of three, with a staleness of 5."""
    write(tmp_path, 0, step(0, 0.0), step(1, 1.0))
    write(tmp_path, 1, step(0, 0.0, ended_s=3.0, compute_s=2.5, tau=5, version_applied=5))
    return tmp_path


def test_at_each_moment_clocks_losses_and_staleness_are_those_of_steps_that_had_ended(folder: Path):
    playback = open_playback(folder)
    (job,) = playback.at(101.25).jobs
    assert (job.name, job.consistency, job.state, job.num_workers) == ("digits", "ssp:3", "running", 2)
    assert [(it.step, it.samples, it.waited_s, it.metrics) for it in job.workers] == [
        (1, 32, 0.5, {"loss": 1.0}),
        (0, 0, 0.0, {}),
    ]
    assert [job.tables[0].gap(it) for it in job.tables[0].workers] == [1, 0]
    assert (job.updates, job.tau.pushes, job.tau.max) == (1, 1, 0)
    (job,) = playback.at(playback.end_s).jobs
    assert (job.state, job.updates, job.tau.max) == ("ended", 6, 5)
    assert [it.state for it in job.workers] == ["finished", "finished"]
    assert playback.at(99.0).jobs == ()


def test_who_waits_at_the_gate_is_named_with_whom_it_waits_for(folder: Path):
    playback = open_playback(folder)

    def waits(unix_s: float) -> list[str]:
        return [it.waits for it in playback.at(unix_s).jobs[0].workers]

    assert waits(101.25) == ["", ""]  # worker 0 computes its second step
    assert waits(101.75) == ["at the gate, for worker 1", ""]
    assert waits(102.75) == ["", ""]  # worker 1 is at the gate alone: nobody is behind it


def test_a_worker_that_died_is_away_until_it_comes_again(folder: Path):
    write(folder, 1, step(1, 5.0), incarnation=2)
    playback = open_playback(folder)
    states = [[it.state for it in playback.at(at).jobs[0].workers] for at in (102.5, 104.0, 105.5, 106.5)]
    assert states == [
        ["finished", "running"],
        ["finished", "lost"],
        ["finished", "running"],
        ["finished", "finished"],
    ]


def test_a_run_of_a_comparison_has_its_faults_and_evaluations_as_events(folder: Path):
    run = folder / "run"
    write(run / "records", 0, step(0, 0.0), step(1, 1.0))
    outcome = RunOutcome(
        ending=Ending.FINISHED,
        started_unix_s=99.0,
        ended_unix_s=103.0,
        evaluations=(EvaluationPoint(unix_s=101.5, held_s=0.0, values={"accuracy": 0.97}),),
        faults=(Fault(kind="crash", worker=1, unix_s=100.5),),
    )
    (run / "result.json").write_text(encode(outcome))
    playback = open_playback(run)
    assert playback.at(101.0).jobs[0].happened == ("worker 1: crash",)
    assert playback.at(102.0).jobs[0].happened == ("worker 1: crash", "evaluation: accuracy 0.97")


def test_frames_come_at_the_pace_of_the_run_and_the_last_one_stays(folder: Path):
    pauses: list[float] = []
    shown = list(itertools.islice(frames(open_playback(folder), "there", 4.0, pause=pauses.append), 6))
    assert [view.source for view in shown] == [
        "there: 0.0 of 3.0 s",
        "there: 1.0 of 3.0 s",
        "there: 2.0 of 3.0 s",
        *["there: all 3.0 s; Ctrl-C ends"] * 3,
    ]
    assert pauses == [0.25, 0.25, 0.25, 1.0, 1.0]
    clocks = [[lane.clock for lane in view.jobs[0].lanes] for view in shown[:4]]
    assert clocks == [[0, 0], [1, 0], [2, 0], [2, 1]]
    assert shown[-1].jobs[0].staleness == (0.0, 0.0, 5.0)
    assert shown[-1].jobs[0].worst == 5
    assert not shown[0].shards


def test_what_cannot_be_played_back_is_said(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    empty = tmp_path_factory.mktemp("empty")
    for path in (empty, empty / "nowhere"):
        with pytest.raises(UsageError, match="no recorded steps"):
            open_playback(path)
    (empty / "experiment.json").write_text("{}")
    with pytest.raises(UsageError, match=r"many runs: name one of .*runs"):
        open_playback(empty)
    write(folder, 0, step(0, 0.0), job="other")
    assert [job.name for job in open_playback(folder).only("other").at(103.0).jobs] == ["other"]
    with pytest.raises(UsageError, match=r"no steps of the job 'wrong' were .* but of digits, other"):
        open_playback(folder).only("wrong")
