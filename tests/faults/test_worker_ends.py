"""A worker process is stopped or killed in the middle of a run: its exit code, and what the others see."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch

import ps_worker as ps
from ps_wire.errors import Evicted, Unavailable
from tests.integration.processes import LIMIT_S, Process, Start, ended
from tests.integration.servers import Servers, fresh_job, serving
from tests.integration.team import join

pytestmark = [pytest.mark.integration, pytest.mark.fault]

FOREVER = """
import torch, ps_worker as ps
with ps.connect() as worker:
    table = worker.table({"w": torch.zeros(5000)}, optimizer=ps.SGD(lr=1.0))
    while True:
        table.push({"w": -torch.ones(5000)})
        table.pull().result()
        print("step", table.step, flush=True)
"""


@pytest.fixture
def forever(tmp_path: Path) -> str:
    """A script that trains until it is stopped."""
    script = tmp_path / "forever.py"
    script.write_text(FOREVER)
    return str(script)


def begin(spawn: Start, servers: Servers, script: str, job: str, consistency: str) -> Process:
    """Worker 1 of two, as a process."""
    options = ("--servers", servers.option, "--job", job, "--consistency", consistency)
    return spawn("ps-worker", *options, "--num-workers", "2", "--worker", "1", script)


def table_of(worker: ps.Worker) -> ps.Table:
    return worker.table({"w": torch.zeros(5000)}, optimizer=ps.SGD(lr=1.0))


def step(table: ps.Table) -> torch.Tensor:
    table.push({"w": -torch.ones(5000)}).result(LIMIT_S)
    values: torch.Tensor = table.pull().result(LIMIT_S).values["w"]
    return values


def step_on(table: ps.Table) -> None:
    for _ in range(100_000):
        step(table)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
@pytest.mark.parametrize("consistency", ["bsp", "ssp:1"])
def test_a_stopped_worker_leaves_in_order_and_the_others_go_on(
    cluster: Servers, spawn: Start, forever: str, number: signal.Signals, code: int, consistency: str
) -> None:
    """Ctrl-C ends a worker with 130, SIGTERM with 75; who stays finishes without it."""
    job, steps = fresh_job(), 20
    other = begin(spawn, cluster, forever, job, consistency)
    with join(cluster, job, num_workers=2, worker=0, consistency=consistency) as worker:
        table = table_of(worker)
        for _ in range(5):
            step(table)
        other.wait_line("step 3")
        other.signal(number)
        for _ in range(steps - 5):
            values = step(table)
        worker.finish()
        assert other.wait_end() == code
        assert worker.stats().step == steps
    assert "Traceback" not in other.text
    assert cluster.status(job).state == "ended"
    spread = 0 if consistency == "bsp" else 1  # without a barrier a pull may meet a push of the other halfway
    assert values.max() - values.min() <= spread
    for shard in (0, 1):
        pushed, partitions = cluster.ledger(shard, job, 1), cluster.table(shard, job).partitions
        assert cluster.ledger(shard, job, 0).applied == steps * partitions
        assert pushed.received == pushed.applied + pushed.abstained


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_a_killed_worker_is_named_to_the_others(
    cluster: Servers, spawn: Start, forever: str, consistency: str
) -> None:
    """SIGKILL: whoever stays gets Evicted with its number, host and pid, and does not hang."""
    job = fresh_job()
    other = begin(spawn, cluster, forever, job, consistency)
    with join(cluster, job, num_workers=2, worker=0, consistency=consistency) as worker:
        table = table_of(worker)
        step(table)
        other.wait_line("step 1")
        other.signal(signal.SIGKILL)
        with pytest.raises(Evicted) as lost:
            step_on(table)
        assert other.wait_end() == -signal.SIGKILL
        assert lost.value.facts["worker"] == 1
        assert lost.value.facts["pid"] == other.pid
        assert lost.value.message.startswith("worker 1 (host ")
        assert f"pid {other.pid}) of job {job} vanished without leaving" in lost.value.message
        assert lost.value.exit_code == 1
        with pytest.raises(Evicted):
            worker.finish()
    cluster.wait_state(job, "suspended")


def test_a_stopped_server_ends_its_workers_with_69(spawn: Start, forever: str) -> None:
    """SIGTERM ends a server with 0 while workers train; they do not hang, and say why."""
    with serving(spawn, 2) as servers:
        job = fresh_job()
        other = begin(spawn, servers, forever, job, "bsp")
        with join(servers, job, num_workers=2, worker=0) as worker:
            table = table_of(worker)
            step(table)
            servers.processes[0].signal(signal.SIGTERM)
            with pytest.raises(Unavailable) as gone:
                step_on(table)
            assert gone.value.exit_code == 69
            assert "coordinator" in gone.value.message
        code, line = ended(other)
        assert code == 69
        assert "coordinator" in line
        assert servers.processes[0].wait_end() == 0


def test_a_killed_server_ends_its_workers_with_69(spawn: Start, forever: str) -> None:
    """SIGKILL of a shard: its workers try again for their retry limit, then name it."""
    servers = Servers(spawn, 2)
    with join(servers, fresh_job(), retry_limit=1.0) as worker:
        table = table_of(worker)
        step(table)
        servers.processes[1].kill()
        began_s = time.monotonic()
        with pytest.raises(Unavailable, match=f"shard 1 at {servers.addresses[1]} is gone") as gone:
            step_on(table)
        assert gone.value.exit_code == 69
    assert time.monotonic() - began_s < 8  # it leaves at once, too
    assert servers.close() == [0, -signal.SIGKILL]
