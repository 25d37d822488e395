"""`ps-lab bench` as a person uses it: real processes, few bytes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ps_lab.cluster import command_path

pytestmark = pytest.mark.integration

LIMIT_S = 110.0  # nine processes, most of which import torch


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


def test_a_round_trip_beside_both_peers_and_the_limit(tmp_path: Path) -> None:
    shapes, figures_file = tmp_path / "shapes.json", tmp_path / "figures.json"
    shapes.write_text("[[100, 30], [100], []]")
    mark = f"PS_TEST_MARK={tmp_path}"
    done = subprocess.run(
        [
            *(command_path("ps-lab"), "bench", "roundtrip", "--shapes", str(shapes), "--rounds", "3"),
            *("--optimizer", "adam", "--versus", "gloo,torch-rpc", "--json", str(figures_file)),
        ],
        env=os.environ | dict([mark.split("=", 1)]),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for row in ("project", "gloo", "torch-rpc", "the machine's limit"):
        assert row in done.stdout
    figures = json.loads(figures_file.read_text())
    assert (figures["parameters"], figures["tensors"], figures["bytes"]) == (3101, 3, 12404)
    assert (figures["num_servers"], figures["num_workers"], figures["rounds"]) == (1, 2, 3)
    assert figures["peers"].keys() == {"gloo", "torch-rpc"}
    for party in (figures["limit"], *figures["peers"].values()):
        assert party["ratio"] == figures["round_s"]["median"] / party["round_s"]["median"]
    # weights and two moments, in partitions that are padded to whole pages
    assert 3 * 12404 <= figures["server_state_bytes"] < 3 * (12404 + 4096 * 3)
    assert figures["server_peak_rss_bytes"] > 50 << 20
    assert alive(mark) == []
