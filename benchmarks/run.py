"""`make bench`: every figure that has a target, measured now, with pass or miss.

The row against MXNet needs PS_BENCH_MXNET_PYTHON (a python with mxnet==1.9.1 and numpy==1.23.5); without
it the round is timed alone and the row says so. Ratios count, seconds do not: machines are shared and noisy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
SLICES = 2  # one per worker


def run(script: str, *arguments: str) -> dict[str, Any]:
    """A script's JSON line."""
    command = [sys.executable, str(HERE / script), *arguments]
    outcome = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(outcome.stdout.strip().splitlines()[-1])
    return figures


def main() -> None:
    table = Table("what", "measured", "target", "verdict")

    def row(what: str, value: float, target: float, unit: str) -> None:
        verdict = "[green]pass" if value <= target else "[red]miss"
        table.add_row(what, f"{value:.3g} {unit}", f"<= {target:g} {unit}", verdict)

    peer = ["--versus", "mxnet"] if os.environ.get("PS_BENCH_MXNET_PYTHON") else []
    bsp = run("roundtrip.py", "--carrier", "grpc", *peer)
    if peer:
        row(
            "grpc, bsp, ResNet-50, 2 workers, against MXNet dist_sync",
            bsp["peers"]["mxnet"]["ratio"],
            1.5,
            "x",
        )
    else:
        table.add_row(
            "grpc, bsp, ResNet-50, 2 workers", f"{bsp['round_s']['median']:.3f} s", "no peer here", ""
        )
    memory = max(bsp["server_peak_above_idle_over_weights"])
    row("server's peak above idle / (weights + slices), SGD, bsp", memory / (1 + SLICES), 1.15, "x")
    adam = run("roundtrip.py", "--optimizer", "Adam", "--consistency", "asp")
    memory = max(adam["server_peak_above_idle_over_weights"])
    row("the same / (weights + state + slices), Adam, asp", memory / (1 + 2 + SLICES), 1.15, "x")
    latency = run("control_latency.py")
    row("slowest health check while 3 GB are applied", latency["health_ms"]["max"], 100, "ms")
    row("slowest status call meanwhile", latency["status_ms"]["max"], 100, "ms")
    cost = run("worker_cost.py")
    row("wrap of 5,000 parameters", cost["wrap"]["wall_ms"], 300, "ms")
    row("their step, the training thread beyond the bytes", cost["steps"]["16"]["beyond"]["cpu_ms"], 5, "ms")
    row("checks of a step, 50 M parameters, of plain torch's step", 100 * cost["checks_share"]["cpu"], 1, "%")
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
