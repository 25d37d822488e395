"""Groups whose ranks have GPUs, over real processes: gradients meet there, and so do batch statistics."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from .groups import start_groups
from .processes import Process, Start
from .servers import Servers

pytestmark = [pytest.mark.integration, pytest.mark.gpu]

STEPS = 3

# Each rank has half of each batch, on a GPU of its own or on the only one; the host has it all.
SCRIPT = f"""
import sys, torch, ps_worker as ps
def make(normal):
    torch.manual_seed(1)
    layers = [torch.nn.Linear(30, 400), torch.nn.ReLU(), torch.nn.Linear(400, 3)]
    return torch.nn.Sequential(*layers[:1], torch.nn.BatchNorm1d(400), *layers[1:]) if normal else \\
        torch.nn.Sequential(*layers)
def train(model, optimizer, device, part):
    generator = torch.Generator().manual_seed(2)
    for _ in range({STEPS}):
        batch = torch.randn(8, 30, generator=generator)[part].to(device)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)
normal = sys.argv[1] == "normal"
with ps.connect() as worker:
    device = torch.device("cuda", worker.local_rank % torch.cuda.device_count())
    model, expected = make(normal).to(device), make(normal)
    if normal:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model, worker.group)
    at = 4 * worker.group_rank
    train(model, worker.wrap(sgd(model), model), device, slice(at, at + 4))
    worker.finish()
    train(expected, sgd(expected), "cpu", slice(0, 8))
    for name, it in model.state_dict().items():
        torch.testing.assert_close(it.cpu(), expected.state_dict()[name], rtol=1e-3, atol=1e-4, msg=name)
"""


# Two ranks on one GPU count as on two: NCCL believes it of hosts of other names, and goes over loopback.
APART = """
import os
from ps_worker.group.devices import gpus
os.environ["NCCL_HOSTID"] = os.environ["RANK"]
gpus.here = lambda *_: (f"of rank {os.environ['RANK']}",)
"""

# Rank 1 ends in its third step, without a word, while rank 0 is in a reduce-scatter with it.
GONE = """
import os, signal, torch, ps_worker as ps
with ps.connect() as worker:
    model = torch.nn.Linear(1000, 1000).cuda()
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for step in range(100):
        optimizer.zero_grad()
        model(torch.ones(4, 1000, device="cuda")).square().mean().backward()
        if step == 3 and worker.group_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
    worker.finish()
"""
BROKEN = 75  # exit code: try again


def start(spawn: Start, cluster: Servers, script: Path, text: str, *words: str, over: str) -> list[Process]:
    """Two ranks of one group. What "apart" are on the only GPU, and go over NCCL."""
    script.write_text((APART if over == "apart" else "") + text)
    options = ("--group-reduce", "shm" if over == "shm" else "nccl")
    return start_groups(spawn, cluster, str(script), *words, groups=1, options=options)[0]


@pytest.mark.parametrize("over", ["shm", "apart", "nccl"])
@pytest.mark.parametrize("kind", ["plain", "normal"])
def test_ranks_on_gpus_train_as_one_process_on_the_host_with_the_whole_batch(
    spawn: Start, cluster: Servers, tmp_path: Path, kind: str, over: str
) -> None:
    """With a GPU for each over NCCL; two on one as ranks on the host. `SyncBatchNorm` sees both halves."""
    there, needs = torch.cuda.device_count(), 2 if over == "nccl" else 1
    if there < needs:
        pytest.skip("no second CUDA device here" if there else "no CUDA device here")

    ranks = start(spawn, cluster, tmp_path / "on_gpus.py", SCRIPT, kind, over=over)

    assert [rank.wait_end() for rank in ranks] == [0, 0], ranks[0].text + ranks[1].text
    assert f"gradients are reduced over {'shm' if over == 'shm' else 'nccl'}" in ranks[0].text


def test_a_rank_that_is_gone_ends_the_other_out_of_its_nccl_call(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    if not torch.cuda.device_count():
        pytest.skip("no CUDA device here")
    first, second = start(spawn, cluster, tmp_path / "gone.py", GONE, over="apart")
    assert second.wait_end() == -signal.SIGKILL
    assert first.wait_end() == BROKEN, first.text
    assert "Traceback" not in first.text
