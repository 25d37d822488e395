"""Models on a GPU, over real processes: the weights of plain torch there, and ends that are named."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from .processes import Process, Start
from .servers import Servers, fresh_job, serving

pytestmark = [
    pytest.mark.integration,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

SCRIPT = str(Path(__file__).with_name("gpu_script.py"))
EXACT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # the same sums each time
OUT_OF_REACH, CTRL_C = 69, 130

# Trains until it is ended; each backward keeps the GPU busy for half a second.
ENDLESS = """
import torch, ps_worker as ps
class Busy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        torch.cuda._sleep(1_000_000_000)
        return gradient
with ps.connect() as worker:
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, overlap=True)
    for step in range(10_000):
        optimizer.zero_grad()
        Busy.apply(model(torch.ones(1, 64, device="cuda"))).sum().backward()
        print("step", step, flush=True)
        optimizer.step()
"""

# Adam on the servers' GPU beside torch's: both add up in an order of their own.
ADAM = """
import copy, torch, ps_worker as ps
with ps.connect() as worker:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8)).cuda()
    expected = copy.deepcopy(model)
    optimizer = worker.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
    beside = torch.optim.AdamW(expected.parameters(), lr=0.01)
    for made, by in ((model, optimizer), (expected, beside)):
        generator = torch.Generator().manual_seed(1)
        for _ in range(20):
            by.zero_grad()
            made(torch.randn(16, 64, generator=generator).cuda()).square().mean().backward()
            by.step()
        worker.synchronize()
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    state, other = optimizer.state_dict()["state"], beside.state_dict()["state"]
    for place in other:
        for name, theirs in other[place].items():
            torch.testing.assert_close(state[place][name].cpu(), theirs.cpu(), rtol=1e-3, atol=1e-5)
    worker.finish()
"""


def train(
    spawn: Start, servers: Servers, script: str, *words: str, carrier: str = "auto", workers: int = 1
) -> list[Process]:
    """Starts workers, which share the GPU."""
    command = (*servers.worker(fresh_job()), "--num-workers", str(workers), "--carrier", carrier)
    return [spawn(*command, "--worker", str(rank), script, *words, **EXACT) for rank in range(workers)]


@pytest.mark.parametrize("carrier", ["auto", "uds", "tcp", "grpc"])
@pytest.mark.parametrize("words", ["on", "off", "auto views", "on half", "auto moved"])
def test_workers_on_a_gpu_come_to_the_bits_of_torch_there(
    spawn: Start, cluster: Servers, words: str, carrier: str
) -> None:
    workers = train(spawn, cluster, SCRIPT, *words.split(), carrier=carrier, workers=2)
    assert [worker.wait_end() for worker in workers] == [0, 0], workers[0].text + workers[1].text
    overlaps = not words.startswith("off")
    assert f"same weights, overlaps: {overlaps}" in workers[0].lines, workers[0].text


@pytest.mark.parametrize(
    "words", ["auto scaled", "auto compiled", "auto compiled graphs", "auto compiled scaled"]
)
def test_scaled_and_compiled_models_on_a_gpu_come_to_the_bits_of_torch_there(
    spawn: Start, cluster: Servers, words: str
) -> None:
    """With a scaler nothing leaves before backward is over."""
    workers = train(spawn, cluster, SCRIPT, *words.split(), workers=2)
    assert [worker.wait_end() for worker in workers] == [0, 0], workers[0].text + workers[1].text
    overlaps = "scaled" not in words
    assert f"same weights, overlaps: {overlaps}" in workers[0].lines, workers[0].text


def test_servers_on_a_gpu_step_as_torch_does_there(spawn: Start, tmp_path: Path) -> None:
    script = tmp_path / "adam.py"
    script.write_text(ADAM)
    with serving(spawn, 2, "--device", "cuda") as servers:
        (worker,) = train(spawn, servers, str(script))
        assert worker.wait_end() == 0, worker.text


def test_ctrl_c_ends_a_worker_whose_gpu_is_busy(spawn: Start, cluster: Servers, tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    (worker,) = train(spawn, cluster, str(script))
    worker.wait_line("step 3")
    worker.signal(signal.SIGINT)
    assert worker.wait_end() == CTRL_C, worker.text
    assert "Traceback" not in worker.text


def test_servers_that_are_gone_end_a_worker_on_a_gpu_by_name(spawn: Start, tmp_path: Path) -> None:
    """Its gradients leave on a thread of autograd, whose error is raised by `backward()`."""
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    servers = Servers(spawn, 1)
    worker = spawn(*servers.worker(fresh_job()), str(script), PS_RETRY_LIMIT="3")
    worker.wait_line("step 3")
    servers.processes[0].kill()
    assert worker.wait_end() == OUT_OF_REACH, worker.text
    assert "Traceback" not in worker.text
