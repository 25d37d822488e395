"""How long health checks and membership take to answer while a shard applies 1 GB of gradients.

    python benchmarks/control_latency.py

One worker pushes a table of 1 GB under Adam, over and over, while another process (this one) asks the health
service every 10 ms. Prints the median, p99 and maximum in milliseconds, and one JSON line. Target: 100 ms.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ps_lab.cluster.cluster import Cluster
from ps_wire.v1 import coordinator_pb2, coordinator_pb2_grpc

SCRIPT = """
import torch, ps_worker as ps
torch.set_num_threads(1)
tensors = {str(i): torch.zeros(1 << 22) for i in range(64)}  # 64 x 16 MiB
with ps.connect() as worker:
    table = worker.table(tensors, optimizer=ps.Adam())
    print("ready", flush=True)
    for _ in range(3):
        table.push(tensors).result()
    print("done", flush=True)
"""


def main() -> None:
    latencies: dict[str, list[float]] = {"health": [], "status": []}
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(num_servers=1, on_line=lambda _name, _line: None))
        (address,) = cluster.addresses
        environment = os.environ | {"PS_SERVERS": address, "PS_CONSISTENCY": "asp", "PS_JOB": "big"}
        worker = subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE, text=True
        )
        stack.callback(worker.kill)
        assert worker.stdout is not None
        assert worker.stdout.readline().strip() == "ready"
        channel = stack.enter_context(grpc.insecure_channel(address))
        health = health_pb2_grpc.HealthStub(channel)
        coordinator = coordinator_pb2_grpc.CoordinatorStub(channel)
        begun_s = time.perf_counter()
        while worker.poll() is None and time.perf_counter() - begun_s < 120:
            for name, call, request in (
                ("health", health.Check, health_pb2.HealthCheckRequest()),
                ("status", coordinator.Status, coordinator_pb2.StatusRequest()),
            ):
                started_s = time.perf_counter()
                call(request, timeout=10)
                latencies[name].append((time.perf_counter() - started_s) * 1e3)
            time.sleep(0.01)
        seconds = time.perf_counter() - begun_s
    figures = {"gigabytes_applied": 3 * 64 * (1 << 24) / 1e9, "seconds": seconds}
    for name, values in latencies.items():
        ordered = sorted(values)
        figures[f"{name}_ms"] = {
            "calls": len(ordered),
            "median": statistics.median(ordered),
            "p99": ordered[int(0.99 * (len(ordered) - 1))],
            "max": ordered[-1],
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
