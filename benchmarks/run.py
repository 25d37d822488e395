"""`make bench`: every figure that has a target, measured now, with pass or miss, or why it cannot be.

Few rounds, for a look; `--rounds 20` for figures to keep, `--only WORDS` for the rows whose name holds them.
Rows whose peer is not installed (`make bench-peers`) say so. Ratios count, seconds do not: machines are
shared and noisy.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from peers import VARIABLES, find_python
from rich.console import Console
from rich.table import Table
from rich.text import Text
from targets import ROWS, Figures, Row

from ps_lab.bench import usage
from ps_lab.cluster.cluster import Cluster, command_path
from ps_lab.cluster.display import make_console, make_error_console

HERE = Path(__file__).resolve().parent


class RunFailed(Exception):
    """A benchmark ended with a failure; the message is its last line."""


class Processes:
    """Commands, each a process of its own, that print figures or write them into a file; each fails once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._failed: dict[tuple[str, ...], str] = {}

    def printed(self, words: Sequence[str]) -> Figures:
        """The figures in the last line that it prints."""
        figures: Figures = json.loads(self.run(words)[-1])
        return figures

    def written(self, words: Sequence[str]) -> Figures:
        """The figures in the file that it is given as `--json`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            self.run([*words, "--json", str(path)], shown=words)
            figures: Figures = json.loads(path.read_text())
        return figures

    def run(self, words: Sequence[str], *, shown: Sequence[str] | None = None) -> list[str]:
        """The lines that it prints. Raises `RunFailed`."""
        key = tuple(shown or words)
        if key in self._failed:
            raise RunFailed(self._failed[key])
        text = " ".join(Path(word).name for word in key)
        self._console.print(text, style="dim", markup=False, soft_wrap=True)
        with self._console.status("running"):
            outcome = subprocess.run(words, cwd=HERE, capture_output=True, text=True, check=False)
        if outcome.returncode == 130:
            raise KeyboardInterrupt
        if outcome.returncode != 0:
            self._console.print(outcome.stderr, markup=False, soft_wrap=True)
            lines = outcome.stderr.strip().splitlines()
            self._failed[key] = lines[-1] if lines else f"exit code {outcome.returncode}"
            raise RunFailed(self._failed[key])
        return outcome.stdout.strip().splitlines()


class Runs(ExitStack):
    """See `targets.Runs`; each run is made once."""

    def __init__(self, rounds: int, processes: Processes) -> None:
        super().__init__()
        self._rounds = rounds
        self._processes = processes
        self.roundtrip = cache(self._roundtrip)
        self.step = cache(self._step)
        self.footprint = cache(self._footprint)
        self.optimizer_cost = cache(self._optimizer_cost)
        self.latency = cache(self._latency)
        self.worker_cost = cache(self._worker_cost)
        self.snapshot = cache(self._snapshot)
        self.fault_times = cache(self._fault_times)
        self.group_step = cache(self._group_step)
        self.pipeline = cache(self._pipeline)
        self.heartbeats = cache(self._heartbeats)
        self.simulate = cache(self._simulate)
        self.instrument = cache(self._instrument)
        self.token_cost = cache(self._token_cost)
        self.clock_cost = cache(self._clock_cost)
        self.start_cost = cache(self._start_cost)
        self.many_workers = cache(self._many_workers)
        self.idle_server_bytes = cache(self._idle_server_bytes)
        self.tls_dir = cache(self._tls_dir)

    def _roundtrip(self, **options: str) -> Figures:
        return self._figures([sys.executable, str(HERE / "roundtrip.py")], options)

    def _step(self, **options: str) -> Figures:
        return self._figures([command_path("ps-lab"), "bench", "step"], options)

    def _footprint(self, **options: str) -> Figures:
        return self._line("footprint.py", options)

    def _optimizer_cost(self, **options: str) -> Figures:
        return self._line("optimizer_cost.py", {"rounds": str(self._rounds), **options})

    def _latency(self) -> Figures:
        return self._line("control_latency.py", {})

    def _worker_cost(self) -> Figures:
        return self._line("worker_cost.py", {})

    def _snapshot(self) -> Figures:
        return self._line("snapshot.py", {})

    def _fault_times(self) -> Figures:
        return self._line("fault_times.py", {})

    def _group_step(self, **options: str) -> Figures:
        return self._line("group_step.py", {"rounds": str(self._rounds), **options})

    def _pipeline(self, **options: str) -> Figures:
        return self._line("pipeline.py", {"rounds": str(self._rounds), **options})

    def _heartbeats(self) -> Figures:
        return self._line("heartbeats.py", {})

    def _simulate(self, **options: str) -> Figures:
        return self._line("simulate.py", options)

    def _instrument(self, **options: str) -> Figures:
        return self._line("instrument.py", options)

    def _token_cost(self) -> Figures:
        return self._line("token_cost.py", {})

    def _clock_cost(self) -> Figures:
        return self._line("clock_cost.py", {})

    def _start_cost(self) -> Figures:
        return self._line("start_cost.py", {})

    def _many_workers(self) -> Figures:
        return self._line("many_workers.py", {})

    def _idle_server_bytes(self) -> int:
        with Cluster(num_servers=1, on_line=lambda _name, _line: None) as cluster:
            found = usage.rss_bytes(cluster.servers[0].pid)
        assert found is not None, "only Linux tells it"
        return found

    def _tls_dir(self) -> str:
        folder = self.enter_context(tempfile.TemporaryDirectory()) + "/certificates"
        self._processes.run([command_path("ps-lab"), "certs", folder])
        return f"{folder}/server"  # good for workers, too

    def _figures(self, command: Sequence[str], options: dict[str, str]) -> Figures:
        return self._processes.written([*command, "--rounds", str(self._rounds), *typed(options)])

    def _line(self, script: str, options: dict[str, str]) -> Figures:
        return self._processes.printed([sys.executable, str(HERE / script), *typed(options)])


def typed(options: dict[str, str]) -> list[str]:
    """The options as a person types them."""
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]


@cache
def missing(needs: str | None) -> str | None:
    """Why what a row needs is not there; None: it is."""
    if needs in VARIABLES:
        return None if find_python(needs) else f"no {needs} here: make bench-peers"
    if needs == "tls":
        words = [command_path("ps-lab"), "certs", "--help"]
        built = subprocess.run(words, capture_output=True, check=False).returncode == 0
        return None if built else "not built"
    return None


def cells(row: Row, runs: Runs) -> tuple[str, str | Text]:
    """What was measured, and the verdict."""
    if (reason := missing(row.needs)) is not None:
        return "", reason
    try:
        value = row.value(runs)
    except RunFailed as error:
        return "", Text(f"failed: {error}", style="red")
    if math.isnan(value):
        return "", Text("too noisy", style="yellow")
    measured = f"{value:.3g} {row.unit}"
    if row.target is None:
        return measured, "reported"
    return measured, Text("pass", style="green") if value <= row.target else Text("miss", style="red")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # then what runs now is ended, too
    table = Table("what", "measured", "target", "verdict")
    console = make_error_console()
    with Runs(options.rounds, Processes(console)) as runs:
        for row in [row for row in ROWS if options.only in row.what]:
            measured, verdict = cells(row, runs)
            # Beside the table, which comes at the end: that may be an hour away.
            console.print(f"  {row.what}:", measured, verdict, highlight=False, soft_wrap=True)
            table.add_row(
                row.what, measured, "" if row.target is None else f"<= {row.target:g} {row.unit}", verdict
            )
    make_console().print(table)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
