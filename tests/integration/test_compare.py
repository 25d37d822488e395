"""`ps-lab compare` over real processes: runs that end, fail, are broken off and gone on with."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ps_lab.compare.folder import Folder, RunFolder
from ps_lab.compare.laws import Holds, verdicts
from ps_lab.compare.outcome import Ending
from ps_lab.compare.results import read_recordings, read_run

from .processes import Process, Zygote, ended

pytestmark = pytest.mark.integration

SCRIPT = """
import os
import sys
import torch
import ps_worker as ps

torch.manual_seed(0)
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
RANKS = (
    SCRIPT
    + """    print(f"rank {{worker.group_rank}} of {{worker.group_size}}", flush=True)
"""
)
# Its run under asp does not end before somebody has let it.
HELD = SCRIPT.replace(
    "    worker.finish()\n",
    """    while os.environ["PS_CONSISTENCY"] == "asp" and not os.path.exists(__file__ + ".goes_on"):
        time.sleep(0.01)
    worker.finish()
""",
).replace("import sys\n", "import sys\nimport time\n")
ENDLESS = """
import time
import torch
import ps_worker as ps

torch.manual_seed(0)
with ps.connect() as worker:
    model = torch.nn.Linear(4, 1)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    loader = worker.loader(torch.utils.data.TensorDataset(torch.rand(32, 4)), batch_size=1)
    for _ in worker.epochs(10**6):
        for (inputs,) in loader:
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            worker.log(loss=loss)
            time.sleep(0.01)
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
def _compare(zygote: Zygote, tmp_path: Path) -> Iterator[object]:
    started: list[Process] = []
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)

    def compare(*options: str, steps: int = 10, fails: str = "", script: str = SCRIPT) -> Process:
        (tmp_path / "train.py").write_text(script.format(steps=steps, fails=fails))
        where = ("--out", str(tmp_path / "out"))
        started.append(zygote.start("ps-lab", "compare", str(tmp_path / "tiny.toml"), *where, *options))
        return started[-1]

    yield compare
    for process in started:
        process.kill()


def folders(tmp_path: Path) -> dict[str, RunFolder]:
    return {one.run.model: one for one in Folder.open(tmp_path / "out").runs}


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
    process = compare(script=HELD)
    process.wait_line(r"1/2  bsp, none, 2 workers, seed 0: \d")
    process.kill()
    (tmp_path / "train.py.goes_on").touch()
    (first,) = [one for one in Folder.open(tmp_path / "out").runs if one.run.model == "bsp"]
    before = (first.path / "result.json").read_bytes()
    process = compare("--resume", script=HELD)
    process.wait_line("2 runs, 1 done, 1 to do")
    process.wait_line(r"1/1  asp, none, 2 workers, seed 0: \d")
    assert process.wait_end() == 0, process.text
    assert (first.path / "result.json").read_bytes() == before
    assert all(outcome.ending is Ending.FINISHED for outcome in outcomes(tmp_path).values())


def test_ctrl_c_ends_all_processes_and_leaves_the_run_to_be_done(compare, tmp_path: Path):
    process = compare("--only", "asp", script=ENDLESS)
    process.wait_line(r"asp, none, 2 workers, seed 0:  .*step ")
    process.signal(signal.SIGINT)
    assert process.wait_end() == 130
    assert set(outcomes(tmp_path).values()) == {None}


def test_a_budget_that_is_over_says_what_is_missing(compare, tmp_path: Path):
    process = compare("--budget", "0")
    process.wait_line("2 runs are left for --resume")
    assert process.wait_end() == 0
    assert json.loads((tmp_path / "out" / "experiment.json").read_text())["name"] == "tiny"


def test_a_run_stops_when_its_workers_have_used_so_many_samples(compare, tmp_path: Path):
    text = EXPERIMENT.replace("record = false\n", "").replace("workers = 2", "workers = 1")
    (tmp_path / "tiny.toml").write_text(text + "[stop]\nsamples = 20\n")
    process = compare("--only", "bsp", script=ENDLESS)
    assert process.wait_end() == 0, process.text
    done = folders(tmp_path)["bsp"]
    assert done.outcome().ending is Ending.FINISHED
    (recorded,) = read_recordings(done.records)
    assert sum(step.samples for step in recorded.steps) >= 20


def test_bsp_has_the_same_loss_curve_again_bit_for_bit(compare, tmp_path: Path):
    """Also where other workers are slow: it waits for all of them."""
    slow = '[[profiles]]\nname = "quiet"\n[[profiles]]\nname = "slow"\nstraggler = "transient:p=0.3,f=5"\n'
    text = EXPERIMENT.replace("record = false\n", "") + slow
    (tmp_path / "tiny.toml").write_text(text.replace('["bsp", "asp"]', '["bsp"]'))
    process = compare(steps=20)
    assert process.wait_end() == 0, process.text
    curves = [
        [[step.loss for step in recording.steps] for recording in read_recordings(one.records)]
        for one in Folder.open(tmp_path / "out").runs
    ]
    assert [len(curve) for run in curves for curve in run] == [20] * 4
    assert curves[0] == curves[1]


def test_the_baselines_run_the_same_script_and_ddp_has_the_same_losses_as_bsp(compare, tmp_path: Path):
    """Bit for bit with two workers, whose mean is rounded once whichever way it is taken; and it stops."""
    (tmp_path / "evaluate.py").write_text(COUNTS)
    text = EXPERIMENT.replace("record = false\n", "").replace('["bsp", "asp"]', '["bsp"]')
    stop = '[stop]\nmetric = "version"\nat_least = 20\n[evaluation]\nscript = "evaluate.py"\nevery_s = 0.1\n'
    (tmp_path / "tiny.toml").write_text(text + 'baselines = ["none", "ddp"]\n' + stop)
    process = compare(script=ENDLESS)
    assert process.wait_end() == 0, process.text
    found = folders(tmp_path)
    outcome = found["ddp"].outcome()
    assert outcome.ending is Ending.FINISHED
    assert outcome.metrics["loss"] >= 0.0
    assert outcome.evaluations
    assert {"worker 0", "worker 1", "evaluator"} <= outcome.cpu_s.keys()
    none = found.pop("none")  # the ranks of one group without servers, each of which counts as a worker
    assert none.outcome().ending is Ending.FINISHED
    assert none.outcome().evaluations
    recorded = list(read_recordings(none.records))
    assert [(one.header.worker, one.header.num_workers) for one in recorded] == [(0, 2), (1, 2)]
    assert [sum(step.samples for step in one.steps[:8]) for one in recorded] == [16, 0]
    curves = {
        model: [[step.loss for step in one.steps[:8]] for one in read_recordings(folder.records)]
        for model, folder in found.items()
    }
    assert curves["ddp"] == curves["bsp"]
    assert [len(curve) for curve in curves["ddp"]] == [8, 8]


EVALUATES = """
import json, os, time
import torch
import ps_worker as ps

model = torch.nn.Linear(4, 1)
with ps.connect(role="reader", wait=100) as reader:
    ended = False
    while not ended:
        cut = reader.read(model)
        ended = cut.ended
        print(json.dumps(dict(unix_s=time.time(), held_s=0.01, norm=float(model.weight.norm()))), flush=True)
        time.sleep(0.05)
print("this is no look")
"""
COUNTS = EVALUATES.replace("norm=float(model.weight.norm())", "version=cut.version")
WHOLE = """
[evaluation]
script = "evaluate.py"
every_s = 0.1
[stop]
metric = "norm"
at_least = 0.0
goes_on = true
[[hosts]]
workers = [1]
megabits_per_s = 100
delay_ms = 10
[[profiles]]
name = "dies"
straggler = "crash:step=3,restart=0,worker=1"
"""


def test_records_an_evaluation_and_a_worker_that_is_killed_and_comes_again(compare, tmp_path: Path):
    """All of an experiment at once, with its report."""
    pytest.importorskip("matplotlib", reason="the extra compare is not installed")
    (tmp_path / "evaluate.py").write_text(EVALUATES)
    (tmp_path / "tiny.toml").write_text(EXPERIMENT.replace("record = false\n", "") + WHOLE)
    process = compare("--only", "asp")
    process.wait_line("dies, 2 workers: norm >= 0 was reached by asp after")
    assert process.wait_end() == 0, process.text
    (done,) = [one for one in Folder.open(tmp_path / "out").runs if one.run.model == "asp"]
    outcome = done.outcome()
    assert outcome.ending is Ending.FINISHED
    assert [(fault.kind, fault.worker) for fault in outcome.faults] == [("crash", 1)]
    assert outcome.evaluations
    assert outcome.evaluations[-1].values.keys() == {"norm"}
    assert {"server 0", "worker 0", "worker 1", "evaluator"} <= outcome.cpu_s.keys()
    assert outcome.other_cpu_s is None or outcome.other_cpu_s >= 0.0
    assert "evaluator| this is no look" in (done.path / "output.log").read_text()
    recordings = read_recordings(done.records)
    assert [(one.header.worker, len(one.steps)) for one in recordings if one.header.worker == 0] == [(0, 10)]
    linked = [one for one in recordings if one.header.worker == 1]
    assert len(linked) == 2
    waits = [step.ended_s - step.started_s for one in linked for step in one.steps[:-1]]
    assert waits
    assert min(waits) >= 0.020  # there and back
    assert all(verdict.holds is not Holds.NO for verdict in verdicts(read_run(done)))


def test_a_group_of_ranks_is_one_worker_of_a_run(compare, tmp_path: Path):
    text = EXPERIMENT.replace("record = false\n", "group_size = 2\n").replace("workers = 2", "workers = 1")
    (tmp_path / "tiny.toml").write_text(text)
    assert ended(compare("--only", "bsp", steps=3, script=RANKS))[0] == 0
    (done,) = [one for one in Folder.open(tmp_path / "out").runs if one.run.model == "bsp"]
    assert [(one.header.worker, len(one.steps)) for one in read_recordings(done.records)] == [(0, 3)]
    said = (done.path / "output.log").read_text()
    assert [f"rank {rank} of 2" in said for rank in (0, 1, 2)] == [True, True, False]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('carrier = "shm"\n[[hosts]]\nworkers = [1]\nmegabits_per_s = 8\n', "hosts: data over shm passes"),
        ('model = "bsp"\n', "models"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(compare, tmp_path: Path, more: str, said: str):
    (tmp_path / "tiny.toml").write_text(EXPERIMENT + more)
    code, last = ended(compare())
    assert code == 64
    assert said in last
