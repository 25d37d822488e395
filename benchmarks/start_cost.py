"""What a start takes: a worker's imports and its first optimizer, and a server until it serves.

    python benchmarks/start_cost.py --times 7

Processor time, user and system, of `import ps_worker` and of making `torch.optim.Adam`, in a process that
`ps-worker` prepares and that has imported torch; what importing torch takes there, for scale; and what passes
until a server says that it serves, with its processor time until then. They take turns, the first of each is
dropped, medians count. Prints one JSON line. Targets: 0.3 s of processor time, 1.5 s that pass.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from ps_lab.bench import usage
from ps_lab.cluster.cluster import command_path
from ps_lab.cluster.ports import HOST

WORKER = """
import json, time
import torch
torch_s = time.process_time()
import ps_worker
from ps_wire.process import late_dynamo
late_dynamo.install()
torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
print(json.dumps([torch_s, time.process_time() - torch_s]))
"""


def worker_s() -> tuple[float, float]:
    """Processor time until torch is imported, and beyond it."""
    printed = subprocess.run([sys.executable, "-c", WORKER], check=True, capture_output=True, text=True)
    torch_s, beyond_s = json.loads(printed.stdout)
    return float(torch_s), float(beyond_s)


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
    taken = [(*worker_s(), *server_s()) for _ in range(1 + options.times)]
    torch_s, beyond_s, served_s, server_cpu_s = map(statistics.median, zip(*taken[1:], strict=True))
    figures = {"worker_beyond_torch_s": beyond_s, "torch_cpu_s": torch_s}
    print(json.dumps({**figures, "server_s": served_s, "server_cpu_s": server_cpu_s}))


if __name__ == "__main__":
    main()
