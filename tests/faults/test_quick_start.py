"""The quick start's script survives the quick start's fault: a server that is killed and started again."""

from __future__ import annotations

import signal
from math import ceil
from pathlib import Path

import pytest

from tests.integration.manifests import manifests
from tests.integration.processes import LIMIT_S, Process, Start
from tests.integration.servers import Servers, fresh_job
from tests.until import until

from .controller import Faults

pytestmark = [pytest.mark.integration, pytest.mark.fault]

DIGITS = str(Path(__file__).parents[2] / "examples" / "digits.py")
EPOCHS, BATCH = 6, 16  # the latter is the script's
STANDS = (90, 180)  # of 270 steps: where worker 0 stands until a shard was killed, however late that is


def test_digits_goes_on_when_each_shard_is_killed_and_started_again(
    spawn: Start, faults: Faults, tmp_path: Path
) -> None:
    """Two workers, bsp: both end with 0, after the steps of a run that nobody disturbs."""
    commands: list[tuple[str, ...]] = []

    def begin(*command: str) -> Process:
        commands.append(command)
        return spawn(*command)

    folder, job = tmp_path / "snapshots", fresh_job()
    servers = Servers(begin, 2, "--snapshot-dir", str(folder), "--snapshot-every", "5steps")
    options = ("--servers", servers.option, "--job", job, "--num-workers", "2")
    stops = [faults.arm("worker 0", "worker before a push is queued", since=step) for step in STANDS]
    command = ("ps-worker", *options, DIGITS, "--epochs", str(EPOCHS))
    patient = {"PS_RETRY_LIMIT": f"{LIMIT_S:g}"}  # a server that starts on a busy machine is away for long
    workers = [spawn(*command, **patient, **faults.environment("worker 0")), spawn(*command, **patient)]
    old: set[Path] = set()
    for shard, stop in enumerate(stops):
        until(lambda before=old: manifests(folder) - before, "there is a snapshot")
        servers.processes[shard].signal(signal.SIGKILL)
        servers.processes[shard].wait_end()
        servers.processes[shard] = spawn(*commands[shard])
        stop.wait()
        old = manifests(folder)
        stop.go()
        workers[0].wait_line("goes on from its snapshot")
    codes = [worker.wait_end(LIMIT_S) for worker in workers]
    said = "\n".join(worker.text for worker in workers)
    assert codes == [0, 0], said
    status = servers.status(job)
    assert status is not None
    (whole,) = {use.samples for use in status.epochs}
    batches = ceil(ceil(whole / 2) / BATCH)
    assert {entry.progress.step for entry in status.workers} == {EPOCHS * batches}, said
    servers.close()
