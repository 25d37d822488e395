"""What a snapshot costs the job that it is taken of: its steps while it is taken and written, and without.

    python benchmarks/snapshot.py --mib 1024

One server, one worker that trains a stack of linear layers with plain SGD (bsp, the carrier that is chosen).
Prints one JSON line: steps a second normally and during snapshots, over several of them, the slowest step,
and how long a snapshot took. Target: during / normal >= 0.8, so normal / during <= 1.25.
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
from contextlib import ExitStack

from ps_lab.cluster.cluster import Cluster
from ps_lab.snapshots import calls as snapshot_calls
from ps_wire.access.access import OPEN

JOB = "snapshots"
WIDTH = 2048  # of a layer: 16 MiB
SCRIPT = """
import os, time, torch, ps_worker as ps
torch.set_num_threads(1)
layers, width = int(os.environ["LAYERS"]), int(os.environ["WIDTH"])
net = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(layers)])
with ps.connect() as worker:
    optimizer = worker.wrap(torch.optim.SGD(net.parameters(), lr=1e-6), net)
    batch = torch.randn(int(os.environ["BATCH"]), width)
    while True:
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
        print(time.monotonic(), flush=True)
"""


class Steps:
    """When each step of the worker ended, as it says on its stdout."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._ended_s: list[float] = []
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self._ended_s.append(float(line))
                self._more.notify_all()

    def wait(self, count: int) -> None:
        """Until so many more steps have ended."""
        with self._more:
            until = len(self._ended_s) + count
            if not self._more.wait_for(lambda: len(self._ended_s) >= until, 600):
                raise SystemExit("the worker takes no steps")

    def between(self, start_s: float, end_s: float) -> list[float]:
        """Seconds of each step that lay inside, at least in part."""
        pairs = zip(self._ended_s, self._ended_s[1:], strict=False)
        return [after - before for before, after in pairs if after > start_s and before < end_s]


def rate(steps: list[float]) -> float:
    """Steps a second."""
    return len(steps) / sum(steps)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=256, help="of weights")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="snapshots")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        environment = os.environ | {"PS_SNAPSHOT_DIR": folder, "PS_SNAPSHOT_KEEP": "1"}
        cluster = stack.enter_context(
            Cluster(num_servers=1, on_line=lambda _name, _line: None, environment=environment)
        )
        layers = max(options.mib * (1 << 20) // (4 * WIDTH * WIDTH), 1)
        job = {"PS_SERVERS": cluster.addresses[0], "PS_JOB": JOB, "PS_CONSISTENCY": "bsp"}
        sizes = {"LAYERS": str(layers), "WIDTH": str(WIDTH), "BATCH": str(options.batch)}
        worker = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | job | sizes,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(worker.kill)
        steps = Steps(worker)
        steps.wait(5)  # overlap is decided, memory touched
        normal: list[float] = []
        during: list[float] = []
        taken_s: list[float] = []
        for _ in range(options.rounds):
            start_s = time.monotonic()
            steps.wait(10)
            normal += steps.between(start_s, time.monotonic())[1:]
            start_s = time.monotonic()
            last = list(snapshot_calls.take(cluster.addresses[0], JOB, OPEN))[-1]
            end_s = time.monotonic()
            steps.wait(2)
            during += steps.between(start_s, end_s)
            taken_s.append(end_s - start_s)
    print(
        json.dumps(
            {
                "mib": last.total_bytes / (1 << 20),
                "snapshot_s": statistics.median(taken_s),
                "normal_steps_per_s": rate(normal),
                "during_steps_per_s": rate(during),
                "normal_over_during": rate(normal) / rate(during),
                "slowest_step_s": {"normal": max(normal), "during": max(during)},
            }
        )
    )


if __name__ == "__main__":
    main()
