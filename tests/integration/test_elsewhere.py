"""The service where there is no memory to be shared, no credentials of peers, no names in the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import ENVIRONMENT, TETHER, Process

pytestmark = pytest.mark.integration

TRAIN = """
import torch, ps_worker as ps

with ps.connect() as worker:
    model = torch.nn.Linear(256, 256, bias=False)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.5), model)
    before = model.weight.detach().clone()
    for step in range(3):
        model(torch.ones(1, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    worker.finish()
    print("moved by", (before - model.weight.detach()).mean().item())
"""


def elsewhere(*command: str) -> Process:
    script = str(Path(__file__).with_name("elsewhere.py"))
    process = subprocess.Popen(
        [sys.executable, TETHER, str(os.getpid()), sys.executable, script, *command],
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    return Process(" ".join(command), process.pid, process.stdout, process.wait)


@pytest.fixture(name="server")
def _server() -> Iterator[str]:
    process = elsewhere("ps-server", "--shard", "0/1", "--port", "0")
    try:
        yield process.wait_line(r"(127\.0\.0\.1:\d+)")[1]
    finally:
        process.kill()


def test_a_job_trains_over_unix_sockets_where_memory_cannot_be_shared(server: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    worker = elsewhere("ps-worker", "--servers", server, "--num-workers", "1", str(script))
    assert worker.wait_end() == 0, worker.text
    assert "data goes over uds" in worker.text
    assert "moved by 1.5" in worker.text
