"""Pipelines over real processes: each stage meets the servers with the parameters that it has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from ps_wire.errors import PipelineError
from ps_worker.memory.os_memory import can_overlay
from tests.faults import apart, limits
from tests.faults.links import refusal
from tests.until import until

from . import stages_apart
from .manifests import manifests
from .pipeline_script import batch_of
from .pipelines import SCRIPT, one_process, start_stages
from .processes import Start
from .servers import Servers, fresh_job

pytestmark = pytest.mark.integration

STEPS = 5
ODD = str(Path(__file__).with_name("odd_models_script.py"))
ROOT = Path(__file__).resolve().parents[2]


def rows_of(folder: Path, workers: int = 2) -> dict[tuple[int, int], Any]:
    return {
        (worker, stage): torch.load(folder / f"{worker}-{stage}.pt")
        for worker in range(workers)
        for stage in (0, 1)
    }


def test_pipelines_come_to_the_bits_of_one_process_over_the_same_micro_batches(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    """Two pipelines in one job, of which one is cut elsewhere; each stage is started by hand."""
    groups = start_stages(spawn, cluster, SCRIPT, str(tmp_path), str(STEPS), "cut elsewhere", "bsp")
    assert [stage.wait_end() for group in groups for stage in group] == [0] * 4

    model, losses = one_process(2, STEPS)
    rows = rows_of(tmp_path)
    assert rows[0, 0]["cuts"] != rows[1, 0]["cuts"]
    whole = model.state_dict()
    for worker in range(2):
        halves = [rows[worker, stage]["state"] for stage in range(2)]
        assert not halves[0].keys() & halves[1].keys()
        assert halves[0].keys() | halves[1].keys() == whole.keys()
        for half in halves:
            assert all(torch.equal(it, whole[name]) for name, it in half.items())
        for stage in range(2):
            assert rows[worker, stage]["losses"] == pytest.approx(losses[worker], rel=1e-6)


def test_a_job_goes_on_in_one_process_and_in_another_number_of_stages(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    """Its first worker has cut the table; who comes later lays it out alike, whatever its own cut is.

    The first pipeline's first stage does not end its schedule before the last one has the weights of the next
    step: a stage pushes and pulls while others are in their schedules. The last one has its gradients in the
    memory that is pushed, and nowhere else from its first step on.
    """
    job = fresh_job()
    folder = str(tmp_path)
    for group in start_stages(spawn, cluster, SCRIPT, folder, "2", "leaves", "hold", workers=1, job=job):
        assert [stage.wait_end() for stage in group] == [0, 0], group[0].text + group[1].text
    assert spawn(*cluster.worker(job), "--worker", "0", SCRIPT, folder, "4", "leaves").wait_end() == 0
    for group in start_stages(spawn, cluster, SCRIPT, folder, "6", "views", workers=1, stages=3, job=job):
        assert [stage.wait_end() for stage in group] == [0, 0, 0], group[0].text + group[1].text

    model, _ = one_process(1, 6)
    rows = [torch.load(tmp_path / f"0-{stage}.pt") for stage in range(3)]
    state = {name: it for row in rows for name, it in row["state"].items()}
    assert [len(row["losses"]) for row in rows] == [2, 2, 2]
    assert all(torch.equal(it, state[name]) for name, it in model.state_dict().items())


def test_a_job_goes_on_from_a_snapshot_in_another_number_of_stages_to_the_same_bits(
    spawn: Start, tmp_path: Path
) -> None:
    """Each stage draws on where it was; one that was not there begins."""
    folder, job = str(tmp_path), fresh_job()
    options = "--snapshot-dir", f"{folder}/snapshots", "--snapshot-every", "5steps"
    servers = Servers(spawn, 1, *options)
    (stages,) = start_stages(spawn, servers, SCRIPT, folder, "1000000", "print", workers=1, job=job)
    until(lambda: manifests(tmp_path), "a snapshot")
    for process in (*servers.processes, *stages):
        process.kill()
    servers = Servers(spawn, 1, *options)
    (stages,) = start_stages(spawn, servers, SCRIPT, folder, "3", "more", workers=1, stages=3, job=job)
    assert [stage.wait_end() for stage in stages] == [0, 0, 0]

    said = servers.processes[0].wait_line(r"goes on from its snapshot \S+, step (\d+)")
    model, _ = one_process(1, int(said[1]) + 3)
    rows = [torch.load(tmp_path / f"0-{stage}.pt") for stage in range(3)]
    state = {name: it for row in rows for name, it in row["state"].items()}
    assert [len(row["losses"]) for row in rows] == [3, 3, 3]
    for stage, drawn in enumerate((int(said[1]) + 3, int(said[1]) + 3, 3)):
        draws = torch.rand(drawn + 1, generator=torch.Generator().manual_seed(stage))
        assert rows[stage]["draw"] == draws[-1].item()
    assert all(torch.equal(it, state[name]) for name, it in model.state_dict().items())
    servers.close()


def test_stages_on_two_hosts_find_each_other_and_send_over_the_link(spawn: Start, tmp_path: Path) -> None:
    """No address but that of the server is named; weights are those of one process."""
    if (why := refusal()) is not None:
        pytest.skip(why)
    done = spawn(*apart.command("tests.integration.stages_apart", str(tmp_path)), **apart.ENVIRONMENT)
    assert done.wait_end() == 0, done.text
    found = re.search(r"codes \[0, 0\] bytes (\d+)", done.text)
    assert found is not None, done.text
    activations = stages_apart.STEPS * batch_of(0, 0)[0].nbytes
    assert int(found[1]) > activations
    model, _ = one_process(1, stages_apart.STEPS)
    rows = [torch.load(tmp_path / f"0-{stage}.pt") for stage in range(2)]
    state = {name: it for row in rows for name, it in row["state"].items()}
    assert all(torch.equal(it, state[name]) for name, it in model.state_dict().items())


SPARE = """
import sys, torch
assert "torch.distributed.pipelining" in sys.modules, "each stage imports the compiler by itself"
sys.path.append(sys.argv[1])
import ps_worker as ps
from tests.inside import exchange_of
from tests.pages import resident_bytes
with ps.connect() as worker:
    with torch.device("meta"):
        model = torch.nn.Sequential(*[torch.nn.Linear(128, 128, bias=False) for _ in range(4)])
    x = torch.ones(4, 128)
    pipe = worker.pipeline(model, microbatches=2, example=x)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), pipe)
    for _ in range(2):
        pipe.step(x, x, loss_fn=torch.nn.functional.mse_loss)
        optimizer.step()
        optimizer.zero_grad()
    memory = exchange_of(optimizer).memory
    assert memory.mapped
    own = sum(it.nbytes for it in pipe.state_dict().values())
    assert own == 2 * 128 * 128 * 4
    gradients = sum(map(resident_bytes, memory.gradients.tensors))
    before = pipe.state_dict()["0.weight" if worker.group_rank == 0 else "2.weight"].clone()
    worker.leave()
    weights = sum(map(resident_bytes, memory.weights.tensors))
    after = pipe.state_dict()["0.weight" if worker.group_rank == 0 else "2.weight"]
    print("resident", gradients // own, weights // own, torch.equal(before, after), flush=True)
"""


@pytest.mark.skipif(not can_overlay(), reason="no memory to be mapped here")
def test_a_stage_has_memory_for_its_own_parameters_alone_and_for_no_others_when_it_leaves(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    """Whatever the size of the model; one command starts both, which share what they import."""
    script = tmp_path / "spare.py"
    script.write_text(SPARE)
    stages = spawn(
        *cluster.worker(), "--nproc", "2", "--pipeline-stages", "2", str(script), str(ROOT), **limits.MAPPED
    )
    assert stages.wait_end() == 0, stages.text
    assert re.findall("resident (.*)", stages.text) == ["1 1 True"] * 2


@pytest.mark.parametrize(
    "devices",
    [
        ("cpu", "cpu"),
        pytest.param(("cuda:0", "cuda:0"), marks=pytest.mark.gpu),
        pytest.param(("cuda:0", "cuda:1"), marks=pytest.mark.gpu),
    ],
    ids=["host", "one-gpu", "two-gpus"],
)
def test_each_stage_runs_where_its_example_is(
    spawn: Start, cluster: Servers, tmp_path: Path, devices: tuple[str, str]
) -> None:
    """The model is made on the host; what is sent from stage to stage goes through it.

    On the host they compute in bfloat16, under autocast, and come to the bits of one process.
    """
    there = torch.cuda.device_count()
    if "cuda:0" in devices and not there:
        pytest.skip("no CUDA device here")
    if "cuda:1" in devices and there < 2:
        pytest.skip("no second CUDA device here")
    half = "cuda:0" not in devices
    words = str(tmp_path), "3", f"on:{','.join(devices)}", *(["autocast"] if half else [])
    (stages,) = start_stages(spawn, cluster, SCRIPT, *words, workers=1)
    assert [stage.wait_end() for stage in stages] == [0, 0]

    model, _ = one_process(1, 3, half=half)
    rows = [torch.load(tmp_path / f"0-{stage}.pt", map_location="cpu") for stage in range(2)]
    assert [row["devices"] for row in rows] == [{torch.device(it)} for it in devices]
    state = {name: it for row in rows for name, it in row["state"].items()}
    for name, it in model.state_dict().items():
        rtol, atol = (0.0, 0.0) if half else (1e-3, 1e-4)
        torch.testing.assert_close(state[name], it, rtol=rtol, atol=atol)


TIED = """
import sys, torch, ps_worker as ps
class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x):
        self.calls += 1
        return x
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 16)
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(4)])
        self.counting = Counting()
        self.head = torch.nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight
    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.head(self.counting(x))
def loss_of(out, target):
    return torch.nn.functional.cross_entropy(out.flatten(0, 1), target.flatten())
x, target = torch.randint(20, (8, 6)), torch.randint(20, (8, 6))
ran = []
with ps.connect() as worker:
    for row in sys.argv[1:]:  # one after the other, a model each
        schedule, stages, checkpoint = row.split(":")
        torch.manual_seed(3)
        model, alone = Model(), Model()
        alone.load_state_dict(model.state_dict())
        pipe = worker.pipeline(model, microbatches=4, example=x, schedule=schedule, stages=int(stages),
                               checkpoint=checkpoint)
        views = schedule == "zero-bubble"
        wrapped = worker.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), pipe,
                              gradient_as_bucket_view=views)
        pairs = [(pipe, wrapped),
                 (None, torch.optim.AdamW(alone.parameters(), lr=0.01))]
        for _ in range(4):
            for part, optimizer in pairs:
                optimizer.zero_grad(set_to_none=not views)
                if part is None:
                    loss_of(alone(x), target).backward()
                else:
                    part.step(x, target, loss_fn=loss_of)
                optimizer.step()
        print("calls", schedule, int(model.counting.calls), flush=True)  # those of the stage that has it
        figure = pipe.evaluate(x, target, loss_fn=loss_of)
        with torch.no_grad():
            torch.testing.assert_close(figure, loss_of(alone(x), target), rtol=1e-4, atol=1e-5)
        ran.append((schedule, pipe, alone.state_dict()))
    try:
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.ones(()))
        scaler.step(pairs[0][1])
    except ps.UsageError as error:
        print("refused", error, flush=True)
    model.register_parameter("late", torch.nn.Parameter(torch.ones(3)))
    try:
        pairs[0][1].add_param_group({"params": [model.late]})
    except ps.PsError as error:
        print("refused", error, flush=True)
    worker.finish()
    for schedule, pipe, whole in ran:
        assert pipe.state_dict()
        for name, it in pipe.state_dict().items():
            if name != "counting.calls":
                torch.testing.assert_close(it, whole[name], rtol=1e-4, atol=1e-5)
        tied = sorted(pipe.state_dict().keys() & {"embedding.weight", "head.weight"})
        print("close", schedule, tied, flush=True)
    grows = Counting()
    model, y = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), grows), torch.ones(4, 4)
    model[0].requires_grad_(False)
    pipe = worker.pipeline(model, microbatches=2, example=y, cuts=["1"])
    grow = lambda: grows.register_buffer("calls", torch.ones(9))
    for change in (lambda: None, grow, model.requires_grad_):
        change()
        try:
            pipe.step(y, y, loss_fn=torch.nn.functional.mse_loss)
        except ps.PsError as error:
            print("refused", error, flush=True)
    try:
        pipe.step(y, (y, y), loss_fn=torch.nn.functional.mse_loss)
    except ps.PsError as error:
        print("refused", error, flush=True)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            pipe.evaluate(y, y, loss_fn=torch.nn.functional.mse_loss)
    except ps.PsError as error:
        print("refused", error, flush=True)
"""


def test_tied_weights_and_several_stages_on_a_rank_are_close_to_a_step_in_one_process(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    """The embedding is on one process, the head on the other; activations are computed again.

    Under the schedule in the form of a V both are on the first. Evaluation goes through all stages, and rank
    0 has the buffers of the other one. A GradScaler is refused, and so are a buffer that grows, and
    parameters that are to be trained where torch's schedule brings no gradient back.
    """
    script = tmp_path / "tied.py"
    script.write_text(TIED)
    rows = "interleaved1f1b:4:except_last", "zero-bubble:4:never", "zero-bubble-v:4:always"
    (group,) = start_stages(spawn, cluster, str(script), *rows, workers=1)
    assert [stage.wait_end() for stage in group] == [0, 0], group[0].text + group[1].text
    assert all("refused a GradScaler is not built for pipelines" in stage.text for stage in group)
    assert all("refused the model has a parameter 'late' since" in stage.text for stage in group)
    assert (
        "refused buffer '2.calls' was float32[] when the pipeline was made, and is float32[9]"
        in group[1].text
    )
    assert "refused parameter '0.weight' is to be trained, and when" in group[0].text
    assert all("refused worker.pipeline() was called under no autocast" in stage.text for stage in group)
    assert all(
        "a target that are tensors, as each is cut into micro-batches, got a tuple" in stage.text
        for stage in group
    )
    tied = ["embedding.weight", "head.weight"]
    for schedule, theirs in (("interleaved1f1b", tied), ("zero-bubble", tied), ("zero-bubble-v", [])):
        assert f"close {schedule} {tied}" in group[0].text
        assert f"close {schedule} {theirs}" in group[1].text
        calls = [re.findall(rf"calls {schedule} (\d+)", stage.text) for stage in group]
        assert calls[0] != ["0"], schedule
        assert calls[0] == calls[1] or not theirs, schedule


def test_odd_models_come_to_the_bits_of_one_process(spawn: Start, cluster: Servers) -> None:
    """One after the other in one job; rank 0 has the buffers of all stages as they are now.

    Backwards of stages that torch takes apart to gradients of some weights alone are whole.
    """
    rows = (
        "statistics:1f1b:2",
        "sideways:zero-bubble:4",
        "frozen:zero-bubble-v:4",
        "wide:gpipe:2",
        "turned:zero-bubble:4",
    )
    (group,) = start_stages(spawn, cluster, ODD, *rows, workers=1)
    assert [stage.wait_end() for stage in group] == [0, 0], group[0].text + group[1].text
    for stage in group:
        assert re.findall(r"(?:same|differ) .*", stage.text) == [f"same {row}" for row in rows]


APART = """
import sys, torch
import ps_worker as ps
BOTH = -1
how, odd = sys.argv[1], int(sys.argv[2])
LOSS = torch.nn.functional.mse_loss
with ps.connect() as worker:
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
    x = torch.ones(4, 8)
    pipe = worker.pipeline(model, microbatches=2, example=x)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), pipe)
    how = how if odd in (worker.group_rank, BOTH) else ""
    for step in range(2 if how == "a step fewer" else 4):
        if how == "evaluates alone" and step == 2:
            pipe.evaluate(x, x, loss_fn=LOSS)
        if how == "counts" and step == 2:
            assert pipe.evaluate(x, x, loss_fn=lambda out, _: len(out)) == 2.0
            pipe.evaluate(x, x, loss_fn=lambda out, target: LOSS(out, target, reduction="none"))
        if how == "the other way round":
            optimizer.step()
        pipe.step(x, x, loss_fn=LOSS)
        if how != "the other way round" and (how != "two batches a step" or step % 2):
            optimizer.step()
    worker.finish()
"""


@pytest.mark.parametrize(
    ("how", "odd", "alone", "together"),
    [
        ("evaluates alone", 0, r"pipe\.evaluate\(\)", r"pipe\.step\(\)"),
        ("the other way round", 1, "step 0 of table 0", r"pipe\.step\(\)"),
        ("two batches a step", 1, r"pipe\.step\(\)", "step 0 of table 0"),
        ("a step fewer", 0, r"finish\(\)", r"pipe\.step\(\)"),
    ],
)
def test_stages_that_make_different_calls_end_and_say_which(
    spawn: Start, cluster: Servers, tmp_path: Path, how: str, odd: int, alone: str, together: str
) -> None:
    """Where they would wait for each other in a schedule, which knows no words."""
    script = tmp_path / "apart.py"
    script.write_text(APART)
    options = "--consistency", "asp"
    (group,) = start_stages(spawn, cluster, str(script), how, str(odd), workers=1, options=options)
    assert [stage.wait_end() for stage in group] == [75, 75], group[0].text + group[1].text
    places = (alone, together) if odd == 0 else (together, alone)
    said = r"GroupBroken: rank 0 is at {}, and rank 1 on \S+ at {}; all ranks of a group".format(*places)
    assert all(re.search(said, stage.text) for stage in group), group[0].text + group[1].text


def test_an_evaluation_takes_a_number_for_a_figure_and_refuses_what_is_none(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    script = tmp_path / "apart.py"
    script.write_text(APART)
    (group,) = start_stages(spawn, cluster, str(script), "counts", "-1", workers=1)
    assert group[0].wait_end() == 75
    assert group[1].wait_end() == PipelineError.exit_code
    assert "PipelineError: loss_fn gives one number, a tensor: the mean" in group[1].text
    assert all("It gave float32[2, 8]" in stage.text for stage in group), group[0].text
