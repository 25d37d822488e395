"""Seconds per round: every worker pushes the gradient of every parameter and has pulled every new weight.

    python benchmarks/roundtrip.py --rounds 12
    PS_BENCH_MXNET_PYTHON=/path/to/python python benchmarks/roundtrip.py --versus mxnet

Rounds of the project and of a peer alternate in one run, since only ratios taken in one run count.
Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from shapes import MODELS

HERE = Path(__file__).resolve().parent
START_LIMIT_S = 120.0


class Party:
    """One worker process that does a round when told to."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=os.environ | environment,
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.cpu_s = 0.0

    def wait_ready(self) -> None:
        while self._line() != "ready":
            pass

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("round\n")
        self._process.stdin.flush()

    def end(self) -> float:
        seconds, self.cpu_s = map(float, self._line().split())
        return seconds

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _line(self) -> str:
        assert self._process.stdout is not None
        timer = threading.Timer(START_LIMIT_S, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if not line:
            raise SystemExit(f"a worker ended or hung: {self._process.args}")
        return line.strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def peak_rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) << 10


def rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) << 10


@contextmanager
def background(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=os.environ | environment, cwd=HERE)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def start_project(stack: ExitStack, options: argparse.Namespace) -> tuple[list[Party], list[int], list[int]]:
    scripts = Path(sys.executable).parent
    ports = [free_port() for _ in range(options.num_servers)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    servers = []
    for index, port in enumerate(ports):
        command = [str(scripts / "ps-server"), "--shard", f"{index}/{len(ports)}", "--port", str(port)]
        command += ["--coordinator", addresses[0]] if index else []
        servers.append(stack.enter_context(background(command, {})).pid)
    wait_serving(addresses)
    idle = [rss_bytes(pid) for pid in servers]
    environment = {
        "PS_SERVERS": ",".join(addresses),
        "PS_JOB": "bench",
        "PS_CONSISTENCY": options.consistency,
        "PS_NUM_WORKERS": str(options.num_workers),
        "PS_CARRIER": options.carrier,
    }
    script = [str(HERE / "round_worker.py"), options.model, str(options.partition_kib), options.optimizer]
    workers = [
        Party([sys.executable, *script], environment | {"PS_WORKER": str(index)})
        for index in range(options.num_workers)
    ]
    return workers, servers, idle


def wait_serving(addresses: list[str]) -> None:
    for address in addresses:
        with grpc.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            stub.Check(health_pb2.HealthCheckRequest(), timeout=START_LIMIT_S, wait_for_ready=True)


def start_mxnet(stack: ExitStack, options: argparse.Namespace) -> list[Party]:
    python = os.environ.get("PS_BENCH_MXNET_PYTHON")
    if not python:
        raise SystemExit(
            "--versus mxnet: set PS_BENCH_MXNET_PYTHON to a python with mxnet==1.9.1 numpy==1.23.5"
        )
    environment = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_SERVER": str(options.num_servers),
        "DMLC_NUM_WORKER": str(options.num_workers),
        "OMP_NUM_THREADS": "1",
    }
    for role in ["scheduler"] + ["server"] * options.num_servers:
        stack.enter_context(background([python, "-c", "import mxnet"], environment | {"DMLC_ROLE": role}))
    command = [python, str(HERE / "mxnet_worker.py"), options.model]
    return [Party(command, environment | {"DMLC_ROLE": "worker"}) for _ in range(options.num_workers)]


def one_round(parties: list[Party]) -> float:
    for party in parties:
        party.begin()
    return max(party.end() for party in parties)


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "min": ordered[0],
        "median": statistics.median(ordered),
        "p90": ordered[int(0.9 * (len(ordered) - 1) + 0.5)],
        "max": ordered[-1],
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--num-servers", type=int, default=1)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--consistency", default="bsp")
    parser.add_argument("--optimizer", default="SGD")
    parser.add_argument("--carrier", default="auto")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--partition-kib", type=int, default=2048)
    parser.add_argument("--versus", choices=["mxnet"])
    return parser.parse_args()


def measure(options: argparse.Namespace) -> tuple[dict[str, list[float]], list[int], list[int]]:
    """Rounds of every system in turn: times by system, our servers' resident bytes idle and at their peak."""
    with ExitStack() as stack:
        project, servers, idle = start_project(stack, options)
        systems = {"project": project}
        if options.versus:
            systems[options.versus] = start_mxnet(stack, options)
        for parties in systems.values():
            for party in parties:
                stack.callback(party.close)
                party.wait_ready()
        for parties in list(systems.values()) * 2:
            one_round(parties)  # warm
        times: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(options.rounds):
            for name, parties in systems.items():
                times[name].append(one_round(parties))
        return times, idle, [peak_rss_bytes(pid) for pid in servers]


def main() -> None:
    options = parse()
    weight_bytes = 4 * sum(math.prod(shape) for shape in MODELS[options.model]())
    times, idle, peak = measure(options)
    ours = summary(times["project"])
    figures: dict[str, object] = {
        "model": options.model,
        "parameters": weight_bytes // 4,
        "bytes": weight_bytes,
        "num_servers": options.num_servers,
        "num_workers": options.num_workers,
        "carrier": options.carrier,
        "consistency": options.consistency,
        "optimizer": options.optimizer,
        "rounds": options.rounds,
        "round_s": ours,
        "server_idle_rss_bytes": idle,
        "server_peak_rss_bytes": peak,
        "server_peak_above_idle_over_weights": [
            round((high - low) / (weight_bytes / options.num_servers), 3)
            for high, low in zip(peak, idle, strict=True)
        ],
        "peers": {},
    }
    for name, values in times.items():
        peer = summary(values)
        print(f"{name:10} median {peer['median']:.3f} s  min {peer['min']:.3f} s", file=sys.stderr)
        if name != "project":
            figures["peers"] = {name: {"round_s": peer, "ratio": ours["median"] / peer["median"]}}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
