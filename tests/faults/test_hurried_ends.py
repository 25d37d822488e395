"""Ctrl-C of a worker whose servers are dead, or hang: its process ends, and waits for none of them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.integration.processes import Start
from tests.integration.servers import Servers, fresh_job

from . import limits

pytestmark = [pytest.mark.integration, pytest.mark.fault]

# So long that a process which waits for one of them has not ended when the test looks.
PATIENT = limits.environment(
    ps_worker__steps__SETTLE_LIMIT_S=1000.0, ps_worker__membership__membership__LEAVE_LIMIT_S=1000.0
)
FOREVER = """
import torch, ps_worker as ps
with ps.connect() as worker:
    model = torch.nn.Linear(8, 8)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.001), model)
    while True:
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        print("step", worker.step, flush=True)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "hung"])
def test_ctrl_c_ends_a_worker_though_its_servers_do_not_answer(
    spawn: Start, stoppable: Servers, tmp_path: Path, end: signal.Signals
) -> None:
    script = tmp_path / "forever.py"
    script.write_text(FOREVER)
    worker = spawn("ps-worker", "--servers", stoppable.option, "--job", fresh_job(), str(script), **PATIENT)
    worker.wait_line("step 3")
    for process in stoppable.processes:
        process.signal(end)
    if end is signal.SIGKILL:
        worker.wait_line("broke; trying again")
    worker.signal(signal.SIGINT)
    assert worker.wait_end() == 130, worker.text
    assert "Traceback" not in worker.text, worker.text
