"""Ctrl-C, in a terminal or a notebook cell, while a worker waits for others."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import torch

from .processes import LIMIT_S, Start
from .servers import Servers, fresh_job, until
from .team import join

pytestmark = pytest.mark.integration

WAITS = """
import sys, threading, time, torch, ps_worker as ps

def wait(worker, where):
    model = torch.nn.Linear(3, 5)
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    if where == "step":
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    worker.finish()

try:
    with ps.connect() as worker:
        try:
            wait(worker, sys.argv[1])
        finally:
            began_s = time.monotonic()
finally:
    print("left in time:", time.monotonic() - began_s < 60)
    ours = [it for it in threading.enumerate() if it.name.startswith("ps-") and it.name != "ps-stop"]
    for thread in ours:  # who leaves waits for them no longer than it may
        thread.join(20)
    print("threads:", [it.name for it in ours if it.is_alive()])
"""


@pytest.mark.parametrize("where", ["wrap", "step", "finish"])
def test_ctrl_c_comes_through_and_the_worker_leaves(
    cluster: Servers, spawn: Start, tmp_path: Path, where: str
) -> None:
    """Exit code 130 within seconds, no thread left, no stack; who stays goes on without it."""
    script, job = tmp_path / "waits.py", fresh_job()
    script.write_text(WAITS)
    command = ("ps-worker", "--servers", cluster.option, "--job", job, "--num-workers", "2")
    process = spawn(*command, "--worker", "1", str(script), where)

    def other() -> None:
        with join(cluster, job, num_workers=2, worker=0) as worker:
            model = torch.nn.Linear(3, 5)
            worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
            assert gone.wait(LIMIT_S)
            worker.finish()

    gone = threading.Event()
    thread = threading.Thread(target=other)
    if where == "wrap":
        process.wait_line("waiting for worker 0 to join")
    else:
        thread.start()
    if where == "step":
        until(lambda: _is_at(cluster, job, "step"), "the worker has pushed")
    if where == "finish":
        until(lambda: _is_at(cluster, job, "finish"), "the worker has finished")
    process.signal(signal.SIGINT)
    assert process.wait_end() == 130, process.text
    said = ("waiting for", "data goes over")
    ours = [line for line in process.lines if not any(text in line for text in said)]
    assert ours == ["left in time: True", "threads: []"]
    gone.set()
    if where != "wrap":
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert cluster.status(job).state == "ended"


def _is_at(cluster: Servers, job: str, where: str) -> bool:
    status = cluster.status(job)
    if status is None or status.state != "running":
        return False
    if where == "finish":
        return any(worker.state == "finished" for worker in status.workers)
    return cluster.ledger(0, job, 1).received > 0


def test_sigterm_while_a_script_that_failed_ends_shows_no_traceback_of_ours(
    spawn: Start, tmp_path: Path
) -> None:
    """As it comes from a launcher that ends all workers when the first has failed."""
    script = tmp_path / "train.py"
    script.write_text(
        "import atexit, os, signal\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
        "raise ValueError('bad')\n"
    )
    process = spawn("ps-worker", "--servers", "none", str(script))
    assert process.wait_end() == 1, process.text
    assert "ValueError: bad" in process.text
    assert "SystemExit" not in process.text, process.text
