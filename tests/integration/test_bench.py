"""`ps-lab bench` as a person uses it: real processes, few bytes."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from pathlib import Path

import pytest

from tests.until import until

from .processes import Process, Start, Zygote, pids_in

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def _zygote_is_elsewhere(zygote: Zygote) -> None:
    """It begins with its first child: not in a folder in which nobody may be left."""
    assert zygote.start("ps-lab", "--help").wait_end() == 0


def begin(spawn: Start, folder: Path, *words: str) -> Process:
    """Starts it; all its processes run in that folder."""
    with contextlib.chdir(folder):
        return spawn("ps-lab", "bench", *words)


def bench(spawn: Start, folder: Path, *words: str) -> str:
    """Runs it to its end, and says what it has said; none of its processes is left then."""
    process = begin(spawn, folder, *words)
    assert process.wait_end() == 0, process.text
    until(lambda: not pids_in(folder), "its processes are gone")
    return process.text


def test_a_round_trip_beside_both_peers_and_the_limit(spawn: Start, tmp_path: Path) -> None:
    shapes, figures_file = tmp_path / "shapes.json", tmp_path / "figures.json"
    trace_file, svg = tmp_path / "trace.json", tmp_path / "round.svg"
    shapes.write_text("[[100, 30], [100], []]")
    said = bench(
        spawn,
        tmp_path,
        *("roundtrip", "--shapes", str(shapes), "--rounds", "3", "--optimizer", "adam", "--num-workers", "1"),
        *("--versus", "gloo,torch-rpc", "--json", str(figures_file), "--trace", str(trace_file)),
    )
    for row in ("project", "gloo", "torch-rpc", "the machine's limit"):
        assert row in said
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
    bench(spawn, tmp_path, "picture", str(trace_file), str(svg))
    assert svg.read_text().startswith("<svg")


def test_a_step_beside_compute_alone_and_ddp(spawn: Start, tmp_path: Path) -> None:
    figures_file = tmp_path / "figures.json"
    said = bench(
        spawn,
        tmp_path,
        *("step", "--model", "cnn", "--batch-size", "1", "--num-workers", "1", "--rounds", "1"),
        *("--bucket-mb", "0", "--json", str(figures_file)),
    )
    for row in ("compute alone", "project, overlap on, a push per parameter", "DDP (gloo)"):
        assert row in said
    figures = json.loads(figures_file.read_text())
    assert (figures["tensors"], figures["steps_per_round"]) == (26, 4)
    assert figures["project"]["bucket_mb"] == "0"
    for party in ("alone", "project", "ddp"):
        assert 0 < figures[party]["step_s"]["min"] <= figures[party]["step_s"]["max"]


def test_a_step_through_a_slow_link(spawn: Start, tmp_path: Path) -> None:
    figures_file = tmp_path / "figures.json"
    said = bench(
        spawn,
        tmp_path,
        *("step", "--model", "cnn", "--batch-size", "1", "--num-workers", "1", "--rounds", "1"),
        *("--carrier", "tcp", "--link-gbps", "10", "--link-ms", "20", "--json", str(figures_file)),
    )
    assert "through a link of 10 Gbit/s, 20 ms" in " ".join(said.split())
    figures = json.loads(figures_file.read_text())
    assert figures["ddp"] is None
    assert figures["link"] == {"gbps": 10.0, "ms": 20.0}
    assert figures["project"]["step_s"]["min"] > 0.04  # there and back, however fast compute is


def test_ctrl_c_ends_all_processes(spawn: Start, tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.json"
    shapes.write_text("[[10]]")
    running = begin(
        spawn,
        tmp_path,
        *("roundtrip", "--shapes", str(shapes), "--versus", "gloo", "--num-workers", "1"),
        *("--rounds", "100000000"),
    )

    def all_are_there() -> bool:
        """Itself, its fork server; server, worker and the peer's rank, each with who watches it."""
        assert not running.is_over, running.text
        return len(pids_in(tmp_path)) >= 2 + 2 * 3

    until(all_are_there, "the peer's processes are there")
    running.signal(signal.SIGINT)
    assert running.wait_end() == 130, running.text
    assert running.lines == ["ps-lab: Interrupted: stopped by SIGINT"]
    until(lambda: not pids_in(tmp_path), "its processes are gone")
