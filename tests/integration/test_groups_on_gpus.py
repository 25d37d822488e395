"""Groups whose ranks have GPUs, over real processes: gradients meet there, and so do batch statistics."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .groups import start_groups
from .processes import Start
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


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "normal"])
def test_ranks_on_gpus_train_as_one_process_on_the_host_with_the_whole_batch(
    spawn: Start, cluster: Servers, tmp_path: Path, kind: str, gpus: int
) -> None:
    """With a GPU for each over NCCL; two on one as ranks on the host. `SyncBatchNorm` sees both halves."""
    if torch.cuda.device_count() < gpus:
        pytest.skip("no CUDA device here" if gpus == 1 else "no second CUDA device here")
    script = tmp_path / "on_gpus.py"
    script.write_text(SCRIPT)
    options = ("--group-reduce", "nccl" if gpus == 2 else "shm")

    ranks = start_groups(spawn, cluster, str(script), kind, groups=1, options=options)[0]

    assert [rank.wait_end() for rank in ranks] == [0, 0], ranks[0].text + ranks[1].text
    assert f"gradients are reduced over {options[1]}" in ranks[0].text
