"""A shard's process hangs, and its host is alive: sockets stay open, and nothing comes from them any more."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.integration.processes import Process, Start
from tests.integration.servers import SERVING, Servers, fresh_job, wait_health

from . import limits

pytestmark = [pytest.mark.integration, pytest.mark.fault]

RETRY_LIMIT_S = 2.0
GRPC_LIMIT_S = 60.0  # in which gRPC would not notice it by itself; servers do in 15 s
SOON = limits.environment(ps_worker__transport__liveness__SILENT_S=0.5)

# How long a shard may take to answer is short once it is about to hang: before, it may be held up.
FOREVER = """
import torch, ps_worker as ps
from ps_worker.transport import liveness
with ps.connect() as worker:
    table = worker.table({"w": torch.zeros(50_000)}, optimizer=ps.SGD(lr=1.0))
    while True:
        table.push({"w": -torch.ones(50_000)})
        pulled = table.pull().result()
        assert (pulled.values["w"] == table.step).all()
        if table.step == 3:
            liveness.ANSWER_LIMIT_S = 1.0
        print("step", table.step, flush=True)
"""


def begin(spawn: Start, stoppable: Servers, folder: Path, carrier: str, **environment: str) -> Process:
    """A worker that trains for ever."""
    script = folder / "forever.py"
    script.write_text(FOREVER)
    options = ("--servers", stoppable.option, "--job", fresh_job(), "--carrier", carrier)
    worker = spawn("ps-worker", *options, str(script), **SOON, **environment)
    worker.wait_line("step 3")
    return worker


@pytest.mark.parametrize(("carrier", "shard"), [("shm", 1), ("uds", 0), ("tcp", 1), ("grpc", 0)])
def test_a_worker_of_a_shard_that_hangs_ends_after_its_retry_limit_and_names_it(
    spawn: Start, stoppable: Servers, tmp_path: Path, carrier: str, shard: int
) -> None:
    worker = begin(spawn, stoppable, tmp_path, carrier, PS_RETRY_LIMIT=str(RETRY_LIMIT_S))
    stoppable.processes[shard].signal(signal.SIGSTOP)
    address = stoppable.addresses[shard]
    worker.wait_line(f"shard {shard} at {address} does not answer: its process hangs, or nothing reaches it")
    assert worker.wait_end() == 69, worker.text
    assert f"shard {shard} at {address} is gone since {RETRY_LIMIT_S:g} s" in worker.lines[-1]
    assert "Traceback" not in worker.text


@pytest.mark.parametrize(("carrier", "shard"), [("shm", 1), ("tcp", 0)])
def test_where_a_shard_that_hung_runs_on_training_goes_on(
    spawn: Start, stoppable: Servers, tmp_path: Path, carrier: str, shard: int
) -> None:
    """Each push counts once: the weights are the number of steps."""
    worker = begin(spawn, stoppable, tmp_path, carrier)
    stoppable.processes[shard].signal(signal.SIGSTOP)
    worker.wait_line(f"shard {shard} at .* does not answer")
    last = max(int(line.split()[1]) for line in worker.lines if line.startswith("step"))
    stoppable.processes[shard].signal(signal.SIGCONT)
    worker.wait_line(f"step {last + 20}")
    worker.signal(signal.SIGTERM)
    assert worker.wait_end() == 75, worker.text


def test_the_coordinator_says_that_a_shard_hangs_and_goes_on_with_it(
    spawn: Start, stoppable: Servers, tmp_path: Path
) -> None:
    """Its host answers for its connections; pings over them are not answered, as if it were gone."""
    coordinator, hung = stoppable.processes
    hung.signal(signal.SIGSTOP)
    since_s = time.monotonic()
    coordinator.wait_line(f"shard 1 at {stoppable.addresses[1]} no longer follows: .*hangs")
    assert time.monotonic() - since_s < GRPC_LIMIT_S
    hung.signal(signal.SIGCONT)
    coordinator.wait_line("shard 1 registered")
    worker = begin(spawn, stoppable, tmp_path, "tcp")
    worker.signal(signal.SIGTERM)
    assert worker.wait_end() == 75, worker.text


def test_a_shard_says_that_the_coordinator_hangs_and_follows_it_again(stoppable: Servers) -> None:
    hung, shard = stoppable.processes
    hung.signal(signal.SIGSTOP)
    shard.wait_line(f"coordinator {stoppable.addresses[0]}: .*; trying again")
    hung.signal(signal.SIGCONT)
    hung.wait_line("shard 1 registered")  # the first one, or that which follows
    wait_health(stoppable.addresses[1], SERVING)
