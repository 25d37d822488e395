"""A worker process is stopped or killed in the middle of a run: its exit code, and what the others see."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest
import torch

import ps_worker as ps
from ps_wire.errors import Unavailable
from tests.integration.processes import LIMIT_S, Process, Start, ended
from tests.integration.servers import Servers, fresh_job, serving, until
from tests.integration.team import join

from . import limits

pytestmark = [pytest.mark.integration, pytest.mark.fault]

LEASE_S = 2.0
# Else who leaves after Ctrl-C goes at once where a shard takes 0.1 s to say that it is there.
UNHURRIED = limits.environment(ps_worker__process__farewell__ANSWER_LIMIT_S=100.0)

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


def begin(
    spawn: Start, servers: Servers, script: str, job: str, consistency: str, **environment: str
) -> Process:
    """Worker 1 of two, as a process."""
    options = ("--servers", servers.option, "--job", job, "--consistency", consistency)
    place = ("--num-workers", "2", "--worker", "1")
    return spawn("ps-worker", *options, *place, script, **UNHURRIED, **environment)


def state_of(servers: Servers, job: str, worker: int) -> str:
    status = servers.status(job)
    assert status is not None
    return next(entry.state for entry in status.workers if entry.worker == worker)


def table_of(worker: ps.Worker) -> ps.Table:
    return worker.table({"w": torch.zeros(5000)}, optimizer=ps.SGD(lr=1.0))


def step(table: ps.Table) -> torch.Tensor:
    table.push({"w": -torch.ones(5000)}).result(LIMIT_S)
    values: torch.Tensor = table.pull().result(LIMIT_S).values["w"]
    return values


def step_with(table: ps.Table, other: Process) -> None:
    """Steps until the other one has taken one, which may have been evicted before it."""
    until(
        lambda: step(table) is not None and any(line.startswith("step ") for line in other.lines),
        "the other worker takes a step",
    )


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


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1"])
def test_the_others_go_on_without_a_killed_worker_when_its_lease_is_over(
    cluster: Servers, spawn: Start, forever: str, consistency: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGKILL: nobody waits for longer than the lease; who it was, and that, is said in one line."""
    job = fresh_job()
    other = begin(spawn, cluster, forever, job, consistency, PS_LEASE=str(LEASE_S))
    with (
        caplog.at_level("INFO", "ps_worker"),
        join(cluster, job, num_workers=2, worker=0, consistency=consistency) as worker,
    ):
        table = table_of(worker)
        step_with(table, other)
        other.signal(signal.SIGKILL)
        for _ in range(10):
            step(table)
        until(lambda: state_of(cluster, job, 1) == "lost", "worker 1 is evicted")
        assert other.wait_end() == -signal.SIGKILL
        worker.finish()
        assert worker.stats().step == table.step
    who = f"worker 1 (host {socket.gethostname()}, pid {other.pid})"
    assert f"{who} was evicted: silent for longer than its lease of 2 s" in caplog.text
    status = cluster.status(job)
    assert status is not None
    assert status.state == "ended"
    assert status.events["evict"] >= 1
    for shard in (0, 1):
        pushed = cluster.ledger(shard, job, 1)
        assert pushed.received == pushed.applied + pushed.abstained + pushed.dropped
        assert not pushed.member


@pytest.mark.parametrize("consistency", ["bsp"])
def test_a_worker_that_was_stopped_for_longer_than_its_lease_joins_again(
    cluster: Servers, spawn: Start, forever: str, consistency: str
) -> None:
    """SIGSTOP, eviction, SIGCONT: without a line of user code it trains on, as the next incarnation."""
    job = fresh_job()
    other = begin(spawn, cluster, forever, job, consistency, PS_LEASE=str(LEASE_S))
    with join(cluster, job, num_workers=2, worker=0, consistency=consistency) as worker:
        table = table_of(worker)
        step_with(table, other)
        stopped_at = table.step
        other.signal(signal.SIGSTOP)
        for _ in range(50):
            step(table)
        until(lambda: state_of(cluster, job, 1) == "lost", "worker 1 is evicted")
        other.signal(signal.SIGCONT)
        until(lambda: step(table) is not None and state_of(cluster, job, 1) == "running", "it is back")
        for _ in range(20):
            step(table)
        joined = r"joined again, as incarnation \d+, at steps \{0: (\d+)\}"
        while int(other.wait_line(joined)[1]) < stopped_at + 50:  # it may have been evicted before, too
            pass
        other.signal(signal.SIGINT)
        for _ in range(20):
            step(table)
        assert other.wait_end() == 130
        worker.finish()
    assert "Traceback" not in other.text
    status = cluster.status(job)
    assert status is not None
    assert status.events["rejoin"] >= 1


def test_a_number_whose_holder_lives_is_refused_and_of_one_who_is_dead_is_given(
    cluster: Servers, spawn: Start, forever: str
) -> None:
    """The holder is asked at once; one that does not answer is waited for as long as its lease."""
    job = fresh_job()
    other = begin(spawn, cluster, forever, job, "asp", PS_LEASE="60")  # it is not evicted meanwhile
    with join(cluster, job, num_workers=2, worker=0, consistency="asp") as worker:
        table_of(worker)
        other.wait_line("step 1")
        second = begin(spawn, cluster, forever, job, "asp")
        code, line = ended(second)
        assert code == 78
        assert f"pid {other.pid}) holds this number in job {job}" in line
        other.signal(signal.SIGINT)
        assert other.wait_end() == 130
        dies = begin(spawn, cluster, forever, job, "asp", PS_LEASE=str(LEASE_S))
        dies.wait_line("step ")
        dies.signal(signal.SIGKILL)
        third = begin(spawn, cluster, forever, job, "asp")
        third.wait_line("step ")
        third.signal(signal.SIGINT)
        assert third.wait_end() == 130


def test_a_stopped_server_ends_its_workers_with_69(spawn: Start, forever: str) -> None:
    """SIGTERM ends a server with 0 while workers train; after their retry limit they end, and say why."""
    with serving(spawn, 2) as servers:
        job = fresh_job()
        other = begin(spawn, servers, forever, job, "bsp", PS_RETRY_LIMIT="1")
        with join(servers, job, num_workers=2, worker=0, retry_limit=1.0) as worker:
            table = table_of(worker)
            step(table)
            servers.processes[0].signal(signal.SIGTERM)
            with pytest.raises(Unavailable) as gone:
                step_on(table)
            assert gone.value.exit_code == 69
            assert servers.addresses[0] in gone.value.message
        code, line = ended(other)
        assert code == 69
        assert servers.addresses[0] in line
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
    assert time.monotonic() - began_s < 20  # it leaves at once, too: a retry limit of its own would be 30 s
    assert servers.close() == [0, -signal.SIGKILL]
