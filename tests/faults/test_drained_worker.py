"""SIGTERM wherever a worker's script is: it ends its step, leaves, and 75 says that its work is not done."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.integration.processes import Process, Start
from tests.integration.servers import Servers, fresh_job

pytestmark = [pytest.mark.integration, pytest.mark.fault]

SCRIPT = """
import sys, threading, torch, ps_worker as ps
from ps_worker.process import stopping
where = sys.argv[1]

def here(place, until="told"):
    if where == place:
        print("at", place, flush=True)
        while until == "ever" or (until == "told" and not stopping.asked()):
            threading.Event().wait(0.01)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        if index == 1:
            here("loader", "ever")
        return index

with ps.connect() as worker:
    model = torch.nn.Linear(2, 1)
    here("start", "now")
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for batch in worker.loader(Data(), batch_size=1, shuffle=False) if where != "finish" else ():
        if worker.step == 1:
            here("compute")
            here("stuck", "ever")
            here("gate", "now")
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    here("finish", "now")
    worker.finish()
    here("done")
    print("saved", flush=True)
"""


@pytest.fixture(name="begin")
def _begin(spawn: Start, cluster: Servers, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def begin(where: str, job: str, worker: int = 0, of: int = 1, **environment: str) -> Process:
        options = ("--servers", cluster.option, "--job", job, "--num-workers", str(of))
        return spawn("ps-worker", *options, "--worker", str(worker), str(script), where, **environment)

    return begin


def test_a_worker_ends_what_it_has_begun_and_leaves_wherever_sigterm_finds_it(begin, cluster: Servers):
    """75, and 0 only where `finish()` was behind it. Whoever waits for others, or for data, goes at once."""
    jobs = {where: fresh_job() for where in ("compute", "loader", "start", "done", "limit", "three")}
    found = {where: begin(where, jobs[where]) for where in ("compute", "loader", "done")}
    found["start"] = begin("start", jobs["start"], of=2)
    found["limit"] = begin("stuck", jobs["limit"], PS_DRAIN_LIMIT="0.2")
    for number, where in enumerate(("stuck", "gate", "finish")):
        found[where] = begin(where, jobs["three"], number, 3)
    for where, process in found.items():
        process.wait_line("at " + ("stuck" if where == "limit" else where))
        if where != "stuck":
            process.signal(signal.SIGTERM)
    codes = {where: process.wait_end() for where, process in found.items() if where != "stuck"}
    assert codes == dict.fromkeys(codes, 75) | {"done": 0}, "\n".join(it.text for it in found.values())
    assert "saved" in found["done"].text
    found["stuck"].signal(signal.SIGTERM)
    found["stuck"].wait_line(
        "SIGTERM: this process ends after its step"
    )  # else the kernel makes one signal of two
    found["stuck"].signal(signal.SIGTERM)
    assert found["stuck"].wait_end() == 75
    assert "Traceback" not in "".join(process.text for process in found.values())

    steps = {where: cluster.status(jobs[where]).workers[0].progress.step for where in ("compute", "loader")}
    assert steps == {"compute": 2, "loader": 1}
    status = cluster.status(jobs["three"])
    assert status.events["drain"] == 2, "\n".join(status.happened)
    gate = cluster.ledger(0, jobs["three"], 1)
    assert gate.received == 2 * cluster.table(0, jobs["three"]).partitions
