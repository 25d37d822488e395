"""A rank of a group is killed, stopped or told to end: its group ends as one worker, and the others go on."""

from __future__ import annotations

import fcntl
import re
import signal
from pathlib import Path

import pytest

from tests.integration.groups import SCRIPT, start_rank
from tests.integration.processes import Process, Start
from tests.integration.servers import Servers, fresh_job
from tests.until import until

pytestmark = [pytest.mark.integration, pytest.mark.fault]

LEASE, SHORT_LEASE = "60", "12"  # a rank that is silent for half of it ends its group: the latter to see that
FOREVER = "1000000"


def group_of(
    spawn: Start,
    servers: Servers,
    folder: Path,
    *words: str,
    job: str,
    worker: int,
    consistency: str = "bsp",
    lease: str = LEASE,
) -> list[Process]:
    """The two ranks of one of two groups."""
    return [
        start_rank(
            spawn,
            servers,
            SCRIPT,
            *(str(folder), FOREVER, "print", *words),
            worker=worker,
            rank=rank,
            groups=2,
            size=2,
            job=job,
            options=("--consistency", consistency, "--lease", lease),
        )
        for rank in range(2)
    ]


def steps_on(process: Process, count: int = 20) -> None:
    """Waits until it has taken so many more steps."""
    for _ in range(count):
        process.wait_line("^step ")


def state_of(servers: Servers, job: str, worker: int) -> str:
    status = servers.status(job)
    assert status is not None
    return next(entry.state for entry in status.workers if entry.worker == worker)


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_takes_its_group_out_as_one_worker_and_the_other_group_goes_on(
    spawn: Start, cluster: Servers, tmp_path: Path, killed: int, consistency: str
) -> None:
    job = fresh_job()
    groups = [
        group_of(spawn, cluster, tmp_path, job=job, worker=worker, consistency=consistency, lease=lease)
        for worker, lease in enumerate((LEASE, LEASE if killed else SHORT_LEASE))  # rank 1 tells nobody
    ]
    for rank in groups[1]:
        steps_on(rank)

    groups[1][killed].kill()

    survivor = groups[1][1 - killed]
    assert survivor.wait_end() == 75
    assert re.search(rf"GroupBroken: rank {killed}\b.* has gone", survivor.text), survivor.text
    until(lambda: state_of(cluster, job, 1) == "lost", "the group is evicted")
    for rank in groups[0]:
        steps_on(rank)
    assert state_of(cluster, job, 0) == "running"


def test_a_group_that_was_broken_forms_again_as_a_new_incarnation(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    job = fresh_job()
    groups = [group_of(spawn, cluster, tmp_path, job=job, worker=worker) for worker in range(2)]
    steps_on(groups[1][0])
    groups[1][1].kill()
    assert groups[1][0].wait_end() == 75

    again = group_of(spawn, cluster, tmp_path, job=job, worker=1)

    for rank in (*again, *groups[0]):
        steps_on(rank)
    status = cluster.status(job)
    assert status is not None
    assert [entry.incarnation for entry in status.workers if entry.worker == 1] == [2]


def test_ranks_end_with_the_command_that_has_started_them_also_where_it_is_killed(
    spawn: Start, tmp_path: Path
) -> None:
    script = tmp_path / "holds.py"
    script.write_text(
        "import fcntl, os, signal\n"
        f"held = open({str(tmp_path)!r} + '/' + os.environ['PS_LOCAL_RANK'], 'w')\n"
        "fcntl.flock(held, fcntl.LOCK_EX)\n"
        "print('holds', flush=True)\n"
        "signal.pause()\n"
    )
    command = spawn("ps-worker", "--servers", "none", "--nproc", "2", str(script))
    for _ in range(2):
        command.wait_line("^holds")

    command.kill()

    for rank in range(2):
        with (tmp_path / str(rank)).open("w") as held:
            until(lambda: _is_free(held.fileno()), f"rank {rank} has ended")


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_hangs_ends_its_group_within_the_lease(
    spawn: Start, cluster: Servers, tmp_path: Path, stopped: int
) -> None:
    """Rank 1 while the other waits for it in a call of the script's own, on `worker.group`."""
    job = fresh_job()
    words = ("meets",) if stopped else ()
    groups = [
        group_of(spawn, cluster, tmp_path, *words, job=job, worker=worker, lease=lease)
        for worker, lease in enumerate((LEASE, SHORT_LEASE))
    ]
    for rank in groups[1]:
        steps_on(rank)

    if not stopped:
        groups[1][0].signal(signal.SIGSTOP)

    survivor = groups[1][1 - stopped]
    assert survivor.wait_end() == 75
    assert f"rank {stopped} on" in survivor.text
    assert "was silent for" in survivor.text
    until(lambda: state_of(cluster, job, 1) == "lost", "the group is evicted")
    for rank in groups[0]:
        steps_on(rank)


@pytest.mark.parametrize("told", [0, 1])
def test_sigterm_of_one_rank_ends_all_ranks_of_its_group_at_the_same_step(
    spawn: Start, cluster: Servers, tmp_path: Path, told: int
) -> None:
    job = fresh_job()
    groups = [group_of(spawn, cluster, tmp_path, job=job, worker=worker) for worker in range(2)]
    for rank in groups[1]:
        steps_on(rank)

    groups[1][told].signal(signal.SIGTERM)

    assert [rank.wait_end() for rank in groups[1]] == [75, 75]
    steps = [[line for line in rank.lines if line.startswith("step ")][-1] for rank in groups[1]]
    assert steps[0] == steps[1]
    assert all("GroupBroken" not in rank.text for rank in groups[1]), "\n".join(it.text for it in groups[1])
    assert state_of(cluster, job, 1) == "left"
    for rank in groups[0]:
        steps_on(rank)
