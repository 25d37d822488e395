"""Workers come and go in an epoch that ends with a call of all workers: over processes, in every model."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ps_lab.snapshots import calls as snapshot_calls
from ps_wire.access.access import OPEN
from tests.integration.processes import Process, Start
from tests.integration.servers import Servers, fresh_job
from tests.until import LIMIT_S, until

from . import called

pytestmark = [pytest.mark.integration, pytest.mark.fault]

MODELS = ("bsp", "ssp:1", "asp")
SCRIPT = str(Path(called.__file__))


@dataclass
class Run:
    """A job of workers that run `called.py`."""

    spawn: Start
    servers: Servers
    folder: Path
    consistency: str
    size: str
    victim: int | None = None  # who is to be evicted soon, and nobody else
    job: str = field(default_factory=fresh_job)
    workers: dict[int, Process] = field(default_factory=dict)
    _pipes: dict[int, int] = field(default_factory=dict)

    def begin(self, *stands: tuple[int, ...] | None, first: int = 0) -> None:
        """Starts workers, which stand before the step of that epoch and batch, or of several of them."""
        for worker, stand in enumerate(stands, first):
            record = self.folder / f"record-{worker}"
            if stand is not None and worker not in self._pipes:
                os.mkfifo(f"{record}.go")
                self._pipes[worker] = os.open(f"{record}.go", os.O_RDWR)
            self.workers[worker] = self.spawn(
                "ps-worker",
                *("--servers", self.servers.option, "--job", self.job, "--consistency", self.consistency),
                *("--num-workers", self.size, "--worker", str(worker)),
                *("--lease", "4" if worker == self.victim else "60"),
                *(SCRIPT, str(record), *map(str, stand or ())),
                PS_RETRY_LIMIT=f"{LIMIT_S:g}",
            )

    def go(self, worker: int) -> None:
        """One that stands goes on."""
        os.write(self._pipes[worker], b"x")

    def end(self) -> None:
        """Kills whoever is left."""
        for process in self.workers.values():
            process.kill()
        for pipe in self._pipes.values():
            os.close(pipe)

    def until_evicted(self, worker: int) -> None:
        until(lambda: not self._present(worker), f"worker {worker} is evicted")

    def until_back(self, worker: int) -> None:
        """Then the job waits for it: it does not end without it."""
        until(lambda: self._present(worker), f"worker {worker} joins again")

    def _present(self, worker: int) -> bool:
        status = self.servers.status(self.job)
        assert status is not None
        return any(it.worker == worker and it.state == "running" for it in status.workers)

    def found(self, *workers: int, between: int = 0, behind_loop: bool = False) -> list[dict[str, Any]]:
        """What they ended with: each call was that of one epoch on all who made it, and the same for all.

        Args:
            workers: who ends.
            between: calls that some may have made before the snapshot, and the others without them behind it.
            behind_loop: one may have come again behind the loop of the others.
        """
        ends = {worker: self.workers[worker].wait_end() for worker in workers}
        said = {worker: self.workers[worker].text for worker in workers}
        assert set(ends.values()) == {0}, (ends, *said.values())
        found = [json.loads((self.folder / f"record-{worker}").read_text()) for worker in workers]
        last: dict[int, set[tuple[float, float]]] = {}  # a call that was undone is made again
        for it in found:
            what = "\n".join([*map(str, found), *said.values()])
            assert it["begun"] == {"run": 7}
            assert all(epoch == mean for epoch, mean, _ in it["calls"]), what
            assert all(use == [called.SAMPLES, 0] for use in it["used"].values()), what
            if not it["ended"]:
                assert it["decay"] == called.EPOCHS, what
                assert it["schedule"] == it["steps"] or self.consistency != "bsp", what
            calls = it["calls"]
            if behind_loop and not it["ended"] and calls[-1][0] != called.EPOCHS - 1:
                calls = calls[:-1]  # in the rest of the body in which it was evicted, which is void
            for epoch, values in {epoch: tuple(values) for epoch, *values in calls}.items():
                last.setdefault(epoch, set()).add(values)
        assert sum(len(values) > 1 for values in last.values()) <= between, last
        assert sorted(last) == list(range(called.EPOCHS))
        return found


@pytest.fixture(params=MODELS)
def consistency(request: pytest.FixtureRequest) -> str:
    model: str = request.param
    return model


def stood(
    runs: Callable[..., Run], folder: Path, *options: str, at: tuple[int, ...] = (2, 3)
) -> tuple[Run, list[tuple[str, ...]]]:
    """Worker 1 of two stands in an epoch, on servers of their own; and these servers' commands."""
    commands: list[tuple[str, ...]] = []
    run: Run = runs("2")

    def begin(*command: str) -> Process:
        commands.append(command)
        return run.spawn(*command)

    run.servers = Servers(begin, 2, "--state-dir", str(folder / "state"), *options)
    run.begin(None, at)
    run.workers[1].wait_line("stands")
    return run, commands


def restart(run: Run, commands: list[tuple[str, ...]], shard: int, number: signal.Signals) -> None:
    """A server ends by this signal, and its next process serves."""
    run.servers.processes[shard].signal(number)
    run.servers.processes[shard].wait_end()
    run.servers.processes[shard] = run.spawn(*commands[shard])


@pytest.fixture
def runs(spawn: Start, cluster: Servers, tmp_path: Path, consistency: str) -> Iterator[Callable[..., Run]]:
    """Makes runs; whatever is left of them is killed."""
    made: list[Run] = []

    def make(size: str, **options: str) -> Run:
        made.append(Run(spawn, cluster, tmp_path, consistency, size, **options))
        return made[-1]

    yield make
    for run in made:
        run.end()


@pytest.mark.parametrize("num_workers", [2, 3])
def test_one_is_killed_in_an_epoch_that_ends_with_a_call(runs, num_workers: int) -> None:
    """What it leaves of its share is another's, who takes more steps in that epoch than the rest."""
    run = runs(str(num_workers), victim=num_workers - 1)
    run.begin(*[None] * (num_workers - 1), (1, 3))
    run.workers[num_workers - 1].wait_line("stands")
    run.workers[num_workers - 1].kill()
    run.found(*range(num_workers - 1))


@pytest.mark.parametrize("num_workers", [2, 3])
def test_one_joins_in_an_epoch_that_ends_with_a_call(runs, num_workers: int) -> None:
    """It has no share of that epoch, and waits in the call while the others train on."""
    run = runs(f"{num_workers - 1}:{num_workers}")
    run.begin((1, 3), *[None] * (num_workers - 2))
    run.workers[0].wait_line("stands")
    run.begin(None, first=num_workers - 1)
    run.workers[num_workers - 1].wait_line("joined")
    run.go(0)
    run.found(*range(num_workers))


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_one_joins_again_in_an_epoch_that_ends_with_a_call(runs, num_workers: int, who: int) -> None:
    """As one that joins; as worker 0 it has the rate of the steps that follow."""
    run = runs(str(num_workers), victim=who)
    run.begin(*[(1, 3) if worker == who else (1, 5) for worker in range(num_workers)])
    run.workers[who].wait_line("stands")
    run.workers[who].signal(signal.SIGSTOP)
    run.until_evicted(who)
    others = [worker for worker in range(num_workers) if worker != who]
    for worker in others[:1]:
        run.workers[worker].wait_line("stands")
    run.workers[who].signal(signal.SIGCONT)
    run.go(who)
    run.workers[who].wait_line("joining again")
    run.until_back(who)
    for worker in others:
        run.go(worker)
    run.found(*range(num_workers), behind_loop=True)


def test_the_coordinator_is_stopped_and_comes_back_while_one_waits_in_a_call(runs, tmp_path: Path) -> None:
    """It has handed on which calls were made; who waits asks the next one."""
    run, commands = stood(runs, tmp_path)
    if run.consistency == "asp":  # else it waits at the gate
        until(lambda: run.servers.status(run.job).workers[0].progress.step == 36, "worker 0 waits in a call")
    restart(run, commands, 0, signal.SIGTERM)
    run.go(1)
    run.found(0, 1)
    assert set(run.servers.close()) == {0}


@pytest.mark.parametrize("shard", [0, 1])
def test_a_job_goes_back_to_a_snapshot_while_one_waits_in_a_call(runs, tmp_path: Path, shard: int) -> None:
    """Calls that came after it are made again, those of before the first step are not."""
    options = ("--snapshot-dir", str(tmp_path / "snapshots"))
    run, commands = stood(runs, tmp_path, *options, at=(2, 3, 4, 3))
    gone = False
    for progress in snapshot_calls.take(run.servers.addresses[0], run.job, OPEN):
        if "to reach the cut" in progress.phase and not gone:  # it is fixed, and lies ahead
            run.go(1)
            gone = True
    run.workers[1].wait_line("stands")
    restart(run, commands, shard, signal.SIGKILL)
    run.servers.processes[0].wait_line("goes on from its snapshot")
    run.go(1)
    run.found(0, 1, between=run.consistency != "bsp")
    run.servers.close()
