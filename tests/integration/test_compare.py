"""`ps-lab compare` over real processes: runs that end, fail, are broken off and gone on with."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ps_lab.compare.folder import Folder
from ps_lab.compare.outcome import Ending

from .processes import Process, ended, start

pytestmark = pytest.mark.integration

SCRIPT = """
import os
import sys
import torch
import ps_worker as ps

with ps.connect() as worker:
    model = torch.nn.Linear(4, 1)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range({steps}):
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        worker.log(loss=loss.item())
        if "{fails}" == os.environ["PS_CONSISTENCY"] and step == 2:
            sys.exit(3)
    worker.finish()
"""
EXPERIMENT = """
name = "tiny"
script = "train.py"
models = ["bsp", "asp"]
servers = 1
workers = 2
seeds = [0]
seed_argument = ""
record = false
"""


@pytest.fixture(name="compare")
def _compare(tmp_path: Path) -> Iterator[object]:
    started: list[Process] = []
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)

    def compare(*options: str, steps: int = 10, fails: str = "") -> Process:
        (tmp_path / "train.py").write_text(SCRIPT.format(steps=steps, fails=fails))
        where = ("--out", str(tmp_path / "out"))
        started.append(start("ps-lab", "compare", str(tmp_path / "tiny.toml"), *where, *options))
        return started[-1]

    yield compare
    for process in started:
        process.kill()


def outcomes(tmp_path: Path) -> dict[str, object]:
    return {one.run.model: one.outcome() for one in Folder.open(tmp_path / "out").runs}


def test_one_run_that_fails_is_reported_and_the_others_go_on(compare, tmp_path: Path):
    process = compare(fails="bsp")
    code, last = ended(process)
    assert code == 1
    assert "1 of 2 runs failed: bsp, none, 2 workers, seed 0: worker" in last
    assert "exited with code 3" in last
    found = outcomes(tmp_path)
    assert found["bsp"].ending is Ending.FAILED
    assert found["asp"].ending is Ending.FINISHED
    assert [counts.applied for counts in found["asp"].counts] == [10, 10]
    assert found["asp"].metrics["loss"] >= 0.0
    code, last = ended(compare())
    assert code == 64
    assert "2 of 2 runs: --resume goes on with the others" in last


def test_what_was_broken_off_is_gone_on_with_and_nothing_is_repeated(compare, tmp_path: Path):
    """Kill -9 in the second run; the first one's files stay as they are, byte for byte."""
    process = compare(steps=10)
    process.wait_line(r"1/2  bsp, none, 2 workers, seed 0: \d")
    process.kill()
    (first,) = [one for one in Folder.open(tmp_path / "out").runs if one.run.model == "bsp"]
    before = (first.path / "result.json").read_bytes()
    process = compare("--resume")
    process.wait_line("2 runs, 1 done, 1 to do")
    process.wait_line(r"1/1  asp, none, 2 workers, seed 0: \d")
    assert process.wait_end() == 0, process.text
    assert (first.path / "result.json").read_bytes() == before
    assert all(outcome.ending is Ending.FINISHED for outcome in outcomes(tmp_path).values())


def test_ctrl_c_ends_all_processes_and_leaves_the_run_to_be_done(compare, tmp_path: Path):
    process = compare("--only", "asp", steps=10**6)
    process.wait_line(r"asp, none, 2 workers, seed 0:  .*step ")
    process.signal(signal.SIGINT)
    assert process.wait_end() == 130
    assert set(outcomes(tmp_path).values()) == {None}


def test_a_budget_that_is_over_says_what_is_missing(compare, tmp_path: Path):
    code, last = ended(compare("--budget", "0"))
    assert code == 0
    assert "2 runs are left for --resume" in last
    assert json.loads((tmp_path / "out" / "experiment.json").read_text())["name"] == "tiny"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('baselines = ["ddp"]\n', "baselines: they need worker groups"),
        ("group_size = 2\n", "group_size: there are no worker groups yet"),
        ('model = "bsp"\n', "models"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(compare, tmp_path: Path, more: str, said: str):
    (tmp_path / "tiny.toml").write_text(EXPERIMENT + more)
    code, last = ended(compare())
    assert code == 64
    assert said in last
