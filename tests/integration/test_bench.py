"""`ps-lab bench` as a person uses it: real processes, few bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ps_lab.cluster.cluster import command_path
from tests.until import LIMIT_S, until

pytestmark = pytest.mark.integration


def alive(mark: str) -> list[str]:
    """The processes that carry a mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def bench(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs it to its end; none of its processes is left then."""
    name, value = "PS_TEST_MARK", str(tmp_path)
    done = subprocess.run(
        [command_path("ps-lab"), "bench", *words],
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
        check=False,
    )
    assert alive(f"{name}={value}") == []
    return done


def test_a_round_trip_beside_both_peers_and_the_limit(tmp_path: Path) -> None:
    shapes, figures_file = tmp_path / "shapes.json", tmp_path / "figures.json"
    trace_file, svg = tmp_path / "trace.json", tmp_path / "round.svg"
    shapes.write_text("[[100, 30], [100], []]")
    done = bench(
        tmp_path,
        *("roundtrip", "--shapes", str(shapes), "--rounds", "3", "--optimizer", "adam", "--num-workers", "1"),
        *("--versus", "gloo,torch-rpc", "--json", str(figures_file), "--trace", str(trace_file)),
    )
    assert done.returncode == 0, done.stderr
    for row in ("project", "gloo", "torch-rpc", "the machine's limit"):
        assert row in done.stdout
    figures = json.loads(figures_file.read_text())
    assert (figures["parameters"], figures["tensors"], figures["bytes"]) == (3101, 3, 12404)
    assert (figures["num_servers"], figures["num_workers"], figures["rounds"]) == (1, 1, 3)
    assert figures["carrier"] == ("shm" if sys.platform == "linux" else figures["carrier"])
    assert figures["peers"].keys() == {"gloo", "torch-rpc"}
    for party in (figures["limit"], *figures["peers"].values()):
        assert party["ratio"] == figures["round_s"]["median"] / party["round_s"]["median"]
    # weights and two moments, in partitions that are padded to whole pages
    assert 3 * 12404 <= figures["server_state_bytes"] < 3 * (12404 + 4096 * 3)
    assert figures["server_peak_rss_bytes"] > 50 << 20
    events = json.loads(trace_file.read_text())["traceEvents"]
    processes = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert processes.keys() == {"bench", "server 0", "worker 0"}
    assert sum(event["name"] == "round" for event in events) == 5
    assert bench(tmp_path, "picture", str(trace_file), str(svg)).returncode == 0
    assert svg.read_text().startswith("<svg")


def test_a_step_beside_compute_alone_and_ddp(tmp_path: Path) -> None:
    figures_file = tmp_path / "figures.json"
    done = bench(
        tmp_path,
        *("step", "--model", "cnn", "--batch-size", "1", "--num-workers", "1", "--rounds", "1"),
        *("--bucket-mb", "0", "--json", str(figures_file)),
    )
    assert done.returncode == 0, done.stderr
    for row in ("compute alone", "project, overlap on, a push per parameter", "DDP (gloo)"):
        assert row in done.stdout
    figures = json.loads(figures_file.read_text())
    assert (figures["tensors"], figures["steps_per_round"]) == (26, 4)
    assert figures["project"]["bucket_mb"] == "0"
    for party in ("alone", "project", "ddp"):
        assert 0 < figures[party]["step_s"]["min"] <= figures[party]["step_s"]["max"]


def test_a_step_through_a_slow_link(tmp_path: Path) -> None:
    figures_file = tmp_path / "figures.json"
    done = bench(
        tmp_path,
        *("step", "--model", "cnn", "--batch-size", "1", "--num-workers", "1", "--rounds", "1"),
        *("--carrier", "tcp", "--link-gbps", "10", "--link-ms", "20", "--json", str(figures_file)),
    )
    assert done.returncode == 0, done.stderr
    assert "through a link of 10 Gbit/s, 20 ms" in " ".join(done.stdout.split())
    figures = json.loads(figures_file.read_text())
    assert figures["ddp"] is None
    assert figures["link"] == {"gbps": 10.0, "ms": 20.0}
    assert figures["project"]["step_s"]["min"] > 0.04  # there and back, however fast compute is


def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    mark = f"PS_TEST_MARK={tmp_path}"
    shapes = tmp_path / "shapes.json"
    shapes.write_text("[[10]]")
    running = subprocess.Popen(
        [
            *(command_path("ps-lab"), "bench", "roundtrip", "--shapes", str(shapes), "--versus", "gloo"),
            *("--num-workers", "1", "--rounds", "100000000"),
        ],
        env=os.environ | dict([mark.split("=", 1)]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def ranks() -> bool:
        assert running.poll() is None
        return any("gloo_rank" in command for command in alive(mark))

    until(ranks, "the peer's processes are there")
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=2 * LIMIT_S)
    assert running.returncode == 130, output
    assert output.strip() == "ps-lab: Interrupted: stopped by SIGINT"
    assert alive(mark) == []
