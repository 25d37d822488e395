"""How long a job stands still where a process of it is killed.

    python benchmarks/fault_times.py --times 10

Two shards, two workers that train a small table (bsp, the carrier that is chosen). Three figures, each over
several kills, with the median and the worst; prints one JSON line:

    evicted  kill -9 of a worker, until the other one's next step has ended, less the lease. Below 0 where the
             dead worker was last heard some time before. Target: 0.5 s
    rank     the same with two groups of two ranks: kill -9 of the rank that leads one. Target: 0.5 s
    back     kill -9 of a shard, of shard 0 in every other round, and another process in its place: from its
             readiness until the first step has ended. Target: 3 s. Readiness is that of the last look that
             did not see it yet, so this is some 20 ms more than it was
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ps_lab.cluster.cluster import command_path
from ps_lab.cluster.ports import free_ports
from ps_lab.snapshots import calls as snapshot_calls
from ps_lab.status.observer import is_serving
from ps_wire.access.access import OPEN

LEASE_S = 3.0
LIMIT_S = 120.0
LOOK_S = 0.02  # between two looks at a server that starts
SCRIPT = """
import time, torch, ps_worker as ps
torch.set_num_threads(1)
with ps.connect(on_rollback=lambda step: None) as worker:
    table = worker.table({"w": torch.zeros(100_000)}, optimizer=ps.SGD(lr=0.1))
    while True:
        table.push({"w": torch.ones(100_000)})
        table.pull().result()
        print(time.monotonic(), flush=True)
        time.sleep(0.005)
"""
GROUP_SCRIPT = """
import time, torch, ps_worker as ps
torch.set_num_threads(1)
with ps.connect() as worker:
    model = torch.nn.Linear(300, 300)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.001), model)
    while True:
        optimizer.zero_grad()
        model(torch.ones(1, 300)).mean().backward()
        optimizer.step()
        print(time.monotonic(), flush=True)
        time.sleep(0.005)
"""


class Steps:
    """When each step of a worker ended, as it says on its stdout."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._newest_s = 0.0
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self._newest_s = float(line)
                self._more.notify_all()

    def after(self, moment_s: float) -> float:
        """Waits for the next step that ends after that moment; returns when it did."""
        with self._more:
            if not self._more.wait_for(lambda: self._newest_s > moment_s, LIMIT_S):
                raise SystemExit("the workers take no steps")
            return self._newest_s


class Processes:
    """Two shards with a snapshot folder, and the workers of one job: two, of so many ranks each."""

    def __init__(self, stack: ExitStack, folder: Path, ranks: int = 1) -> None:
        self._ranks = ranks
        self.addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
        self._stack, self._folder = stack, folder
        self.servers = [self._server(0), self._server(1)]
        for address in self.addresses:
            self._until_serving(address)
        self.workers = [self._worker(number) for number in range(2 * ranks)]
        self.steps = [Steps(worker) for worker in self.workers]

    def all_step(self) -> None:
        """Returns once every worker has taken a step from now on."""
        now_s = time.monotonic()
        for steps in self.steps:
            steps.after(now_s)

    def kill_second(self) -> None:
        """Kills the second worker's process; of a group, the one that leads it."""
        self.workers[self._ranks].kill()

    def another_second(self) -> None:
        """In place of the one that was killed; returns when all train."""
        mine = range(self._ranks, 2 * self._ranks)
        for number in mine:
            self.workers[number].wait()
        for number in mine:
            self.workers[number] = self._worker(number)
            self.steps[number] = Steps(self.workers[number])
        self.all_step()

    def another_server(self, shard: int) -> float:
        """In place of one that was killed; returns when it was not ready yet, for the last time."""
        self.servers[shard].wait()
        self.servers[shard] = self._server(shard)
        return self._until_serving(self.addresses[shard])

    def snapshot(self) -> None:
        """Takes one."""
        list(snapshot_calls.take(self.addresses[0], "faults", OPEN))

    def _until_serving(self, address: str) -> float:
        until_s = (not_yet_s := time.monotonic()) + LIMIT_S
        while (looked_s := time.monotonic()) < until_s and not is_serving(address):
            not_yet_s = looked_s
            time.sleep(LOOK_S)
        return not_yet_s

    def _server(self, shard: int) -> subprocess.Popen[str]:
        return self._spawn(
            command_path("ps-server"),
            *("--shard", f"{shard}/2", "--port", self.addresses[shard].rpartition(":")[2]),
            *(("--coordinator", self.addresses[0]) if shard else ()),
            *("--snapshot-dir", str(self._folder / "snapshots"), "--snapshot-keep", "1"),
            *("--state-dir", str(self._folder / f"state-{shard}")),
        )

    def _worker(self, number: int) -> subprocess.Popen[str]:
        job = {"PS_SERVERS": ",".join(self.addresses), "PS_JOB": "faults", "PS_CONSISTENCY": "bsp"}
        worker, rank = divmod(number, self._ranks)
        mine = {"PS_NUM_WORKERS": "2", "PS_WORKER": str(worker), "PS_LEASE": str(LEASE_S)}
        if self._ranks == 1:
            return self._spawn(sys.executable, "-c", SCRIPT, **job, **mine)
        group = {"PS_GROUP_SIZE": str(self._ranks), "PS_GROUP_RANK": str(rank), "PS_LOCAL_RANK": str(rank)}
        return self._spawn(sys.executable, "-c", GROUP_SCRIPT, **job, **mine, **group)

    def _spawn(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._stack.callback(process.kill)
        return process


def evicted_s(job: Processes, _round: int) -> float:
    """One worker is killed; how long after its lease the other one goes on."""
    job.all_step()
    job.kill_second()
    killed_s = time.monotonic()
    seconds = job.steps[0].after(killed_s + LEASE_S / 2) - killed_s - LEASE_S
    job.another_second()
    return seconds


def back_s(job: Processes, number: int) -> float:
    """One shard is killed and comes back; how long after its readiness the first step has ended."""
    job.snapshot()
    job.all_step()
    shard = number % 2
    job.servers[shard].kill()
    ready_s = job.another_server(shard)
    seconds = job.steps[0].after(ready_s) - ready_s
    job.all_step()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=6)
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    kills: dict[str, Callable[[Processes, int], float]] = {"evicted_s": evicted_s, "back_s": back_s}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        job = Processes(stack, folder)
        for name, kill in kills.items():
            seconds = [kill(job, number) for number in range(options.times)]
            figures[name] = {"median": statistics.median(seconds), "worst": max(seconds)}
    with ExitStack() as stack:
        job = Processes(stack, Path(stack.enter_context(tempfile.TemporaryDirectory())), ranks=2)
        seconds = [evicted_s(job, number) for number in range(options.times)]
        figures["rank_s"] = {"median": statistics.median(seconds), "worst": max(seconds)}
    print(json.dumps({"times": options.times, "lease_s": LEASE_S, **figures}))


if __name__ == "__main__":
    main()
