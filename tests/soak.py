"""The tests again and again beside busy loops: what fails now and then shows itself, with its name.

    python -m tests.soak --runs 20 --busy 4 -- -n auto

What follows `--` is pytest's. Each finished run is a line of the table, which is a file, too: the next soak
in that folder goes on with it, so that many runs need not be made at once. A line has the commit that was
tested ("+": with changes), when it began, and how many loops were beside it. The output of run 7 is in
`run-7.log`.
A run that takes longer than a limit is ended, and counts as failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ps_lab.cluster.process_handle import ProcessHandle
from tests.integration.processes import TETHER

TETHERED = (sys.executable, "-I", "-S", TETHER)  # ends with us, however we end
LOOP = "while True: pass"
RUN_LIMIT_S = 2 * 60 * 60.0  # a run takes nine minutes on two idle cores
HEAD = "run  commit      begun             loops  end      passed  failed  skipped  minutes  failed tests"
TABLE = "runs.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one run.

    Attributes:
        number: from 1.
        state: the commit, when it began, and how many loops were beside it.
        end: how pytest ended: `ok`, `code N`, a signal's name, `hung`.
        passed: tests.
        failed: tests, errors of fixtures included.
        skipped: tests.
        duration_s: of all of it.
        names: node ids of what failed.
    """

    number: int
    state: str
    end: str
    passed: int
    failed: int
    skipped: int
    duration_s: float
    names: tuple[str, ...]

    @classmethod
    def read(cls, number: int, state: str, end: str, duration_s: float, output: str) -> Self:
        """From what pytest printed."""
        names = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", output, re.MULTILINE)  # no captured log
        totals = re.findall(r"^(?:=+ )?(?=\d)(.* in [\d.]+s.*)$", output, re.MULTILINE)
        counts = {
            what: int(count) for count, what in re.findall(r"(\d+) (\w+)", totals[-1] if totals else "")
        }
        return cls(
            number=number,
            state=state,
            end=end,
            passed=counts.get("passed", 0),
            failed=counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0),
            skipped=counts.get("skipped", 0),
            duration_s=duration_s,
            names=tuple(dict.fromkeys(names)),
        )

    def __str__(self) -> str:
        figures = f"{self.passed:6}  {self.failed:6}  {self.skipped:7}  {self.duration_s / 60:7.1f}"
        return f"{self.number:3}  {self.state}  {self.end:7}  {figures}  {' '.join(self.names)}".rstrip()


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that each want a core; they die with us, however we end."""
    python = (sys.executable, "-I", "-S")
    loops = [subprocess.Popen([*python, TETHER, str(os.getpid()), *python, "-c", LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def state(loops: int) -> str:
    """What is tested, from now on, beside so many loops."""
    words = ("git", "describe", "--always", "--dirty=+", "--exclude=*")
    try:
        commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return f"{commit:10}  {time.strftime('%Y-%m-%d %H:%M')}  {loops:5}"


def one_run(number: int, loops: int, options: Sequence[str], folder: Path, limit_s: float) -> Run:
    """Runs pytest once; what it has started ends with it."""
    log, tested = folder / f"run-{number}.log", state(loops)
    since_s = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*TETHERED, str(os.getpid()), sys.executable, "-m", "pytest", "-rfE", *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        handle = ProcessHandle(process.pid)
        try:
            ended = handle.wait(limit_s)
        finally:
            handle.send_group(signal.SIGKILL)
            handle.close()
            code = process.wait()
    end = "ok" if code == 0 else f"code {code}" if code > 0 else signal.Signals(-code).name
    return Run.read(
        number, tested, end if ended else "hung", time.monotonic() - since_s, log.read_text(errors="replace")
    )


def soak(runs: int, loops: int, options: Sequence[str], folder: Path, limit_s: float) -> bool:
    """Whether all these runs passed; says each when it has ended, and those that there were before."""
    well, table = True, folder / TABLE
    if not table.exists():
        table.write_text(HEAD + "\n")
    before = table.read_text()
    print(before, end="", flush=True)
    first = len(before.splitlines())
    for number in range(first, first + runs):
        run = one_run(number, loops, options, folder, limit_s)
        print(run, flush=True)
        with table.open("a") as file:
            print(run, file=file)
        well = well and run.end == "ok"
    return well


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--busy", type=int, default=4, help="loops beside them")
    parser.add_argument("--folder", type=Path, default=Path("soak"), help="of the table and the logs")
    parser.add_argument("--limit-minutes", type=float, default=RUN_LIMIT_S / 60, help="of a run")
    parser.add_argument("options", nargs="*", help="of pytest")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    with busy(asked.busy):
        try:
            limit_s = 60 * asked.limit_minutes
            return 0 if soak(asked.runs, asked.busy, asked.options, asked.folder, limit_s) else 1
        except KeyboardInterrupt:
            print(f"broken off; the runs so far are in {asked.folder / TABLE}")
            return 130


if __name__ == "__main__":
    sys.exit(main())
