"""What a start takes: a worker's imports and its first optimizer, and a server until it serves.

    python benchmarks/start_cost.py --times 7

Processor time, user and system, of `import ps_worker` and of making `torch.optim.Adam`, in a process that
`ps-worker` prepares, less that of `import torch` alone; and what passes until a server says that it serves,
with its processor time until then. They take turns, the first of each is dropped, medians count. Prints one
JSON line. Targets: 0.3 s of processor time, 1.5 s that pass.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from ps_lab.bench import usage
from ps_lab.cluster.cluster import HOST, command_path

TORCH = "import torch"
WORKER = """
import torch, ps_worker
from ps_wire.process import late_dynamo
late_dynamo.install()
torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
"""


def python_cpu_s(code: str) -> float:
    """Of an interpreter that runs this code, its end included."""
    process = subprocess.Popen([sys.executable, "-c", code])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode} of: {code}")
    return used.ru_utime + used.ru_stime


def server_s() -> tuple[float, float]:
    """What passes until a server serves, and its processor time until then."""
    began_s = time.monotonic()
    with subprocess.Popen(
        [command_path("ps-server"), "--host", HOST, "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        for line in server.stderr:
            if "serving" in line:
                break
        else:
            raise SystemExit("ps-server ended before it served")
        passed_s, used_s = time.monotonic() - began_s, usage.cpu_s([server.pid])
        server.terminate()
        server.stderr.read()
    assert used_s is not None
    return passed_s, used_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=7)
    options = parser.parse_args()
    torch_s, worker_s, served_s, server_cpu_s = [], [], [], []
    for _ in range(1 + options.times):
        torch_s.append(python_cpu_s(TORCH))
        worker_s.append(python_cpu_s(WORKER))
        passed_s, used_s = server_s()
        served_s.append(passed_s)
        server_cpu_s.append(used_s)
    figures = {
        "torch_cpu_s": torch_s,
        "worker_cpu_s": worker_s,
        "server_s": served_s,
        "server_cpu_s": server_cpu_s,
    }
    medians = {name: statistics.median(found[1:]) for name, found in figures.items()}
    print(json.dumps({"worker_beyond_torch_s": medians["worker_cpu_s"] - medians["torch_cpu_s"], **medians}))


if __name__ == "__main__":
    main()
