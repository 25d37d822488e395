"""`make bench`: every figure that has a target, measured now, with pass or miss.

Few rounds, for a look; `--rounds 20` for figures to keep. Rows about what does not exist yet say "not built",
rows whose peer is not installed (`make bench-peers`) say so. Ratios count, seconds do not: machines are
shared and noisy.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from peers import VARIABLES, find_python
from rich.table import Table
from targets import ROWS, Figures, Row

from ps_lab.bench import usage
from ps_lab.cluster import Cluster, command_path
from ps_lab.display import make_console, make_error_console
from ps_wire.carrier import Carrier

HERE = Path(__file__).resolve().parent


class RunFailed(Exception):
    """A benchmark ended with a failure, which it has described."""


class Runs:
    """See `targets.Runs`; each run is a process of its own, made once."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._console = make_error_console()
        self.roundtrip = cache(self._roundtrip)
        self.step = cache(self._step)
        self.footprint = cache(self._footprint)
        self.latency = cache(self._latency)
        self.worker_cost = cache(self._worker_cost)
        self.idle_server_bytes = cache(self._idle_server_bytes)

    def _roundtrip(self, **options: str) -> Figures:
        return self._figures([sys.executable, str(HERE / "roundtrip.py")], options)

    def _step(self, **options: str) -> Figures:
        return self._figures([command_path("ps-lab"), "bench", "step"], options)

    def _footprint(self, **options: str) -> Figures:
        return self._line("footprint.py", options)

    def _latency(self) -> Figures:
        return self._line("control_latency.py", {})

    def _worker_cost(self) -> Figures:
        return self._line("worker_cost.py", {})

    def _idle_server_bytes(self) -> int:
        with Cluster(num_servers=1, on_line=lambda _name, _line: None) as cluster:
            found = usage.rss_bytes(cluster.servers[0].pid)
        assert found is not None, "only Linux tells it"
        return found

    def _figures(self, command: Sequence[str], options: dict[str, str]) -> Figures:
        words = [*command, "--rounds", str(self._rounds), *typed(options)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            self._run([*words, "--json", str(path)])
            figures: Figures = json.loads(path.read_text())
        return figures

    def _line(self, script: str, options: dict[str, str]) -> Figures:
        figures: Figures = json.loads(self._run([sys.executable, str(HERE / script), *typed(options)])[-1])
        return figures

    def _run(self, words: Sequence[str]) -> list[str]:
        self._console.print(f"running {' '.join(Path(word).name for word in words[:8])} ...", style="dim")
        outcome = subprocess.run(words, cwd=HERE, stdout=subprocess.PIPE, text=True, check=False)
        if outcome.returncode == 130:
            raise KeyboardInterrupt
        if outcome.returncode != 0:
            raise RunFailed(f"exit code {outcome.returncode}")
        return outcome.stdout.strip().splitlines()


def typed(options: dict[str, str]) -> list[str]:
    """The options as a person types them."""
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]


def cells(row: Row, runs: Runs) -> tuple[str, str]:
    """What was measured, and the verdict."""
    if row.value is None or row.carrier not in set(Carrier):
        return "", "not built"
    if row.peer in VARIABLES and find_python(row.peer) is None:
        return "", f"no {row.peer} here"
    try:
        value = row.value(runs)
    except RunFailed as error:
        return str(error), "[red]failed"
    if math.isnan(value):
        return "", "[yellow]too noisy"
    return f"{value:.3g} {row.unit}", "[green]pass" if value <= row.target else "[red]miss"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    runs = Runs(parser.parse_args().rounds)
    table = Table("what", "measured", "target", "verdict")
    for row in ROWS:
        measured, verdict = cells(row, runs)
        table.add_row(row.what, measured, f"<= {row.target:g} {row.unit}", verdict)
    make_console().print(table)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
