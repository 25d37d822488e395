"""The tests again and again beside busy loops: what fails now and then shows itself, with its name.

    python -m tests.soak --runs 20 --busy 4 -- -n auto

What follows `--` is pytest's. Each finished run is a line of the table, which is a file, too: a soak that is
broken off says what it had. The output of run 7 is beside it, in `run-7.log`. A run that takes longer than a
limit is ended, and counts as failed.
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
HEAD = "run  end      passed  failed  skipped  minutes  failed tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one run.

    Attributes:
        number: from 1.
        end: how pytest ended: `ok`, `code N`, a signal's name, `hung`.
        passed: tests.
        failed: tests, errors of fixtures included.
        skipped: tests.
        duration_s: of all of it.
        names: node ids of what failed.
    """

    number: int
    end: str
    passed: int
    failed: int
    skipped: int
    duration_s: float
    names: tuple[str, ...]

    @classmethod
    def read(cls, number: int, end: str, duration_s: float, output: str) -> Self:
        """From what pytest printed."""
        names = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        totals = re.findall(r"^(?:=+ )?(?=\d)(.* in [\d.]+s.*)$", output, re.MULTILINE)
        counts = {
            what: int(count) for count, what in re.findall(r"(\d+) (\w+)", totals[-1] if totals else "")
        }
        return cls(
            number=number,
            end=end,
            passed=counts.get("passed", 0),
            failed=counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0),
            skipped=counts.get("skipped", 0),
            duration_s=duration_s,
            names=tuple(dict.fromkeys(names)),
        )

    def __str__(self) -> str:
        figures = f"{self.passed:6}  {self.failed:6}  {self.skipped:7}  {self.duration_s / 60:7.1f}"
        return f"{self.number:3}  {self.end:7}  {figures}  {' '.join(self.names)}".rstrip()


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


def one_run(number: int, options: Sequence[str], folder: Path, limit_s: float) -> Run:
    """Runs pytest once; what it has started ends with it."""
    log = folder / f"run-{number}.log"
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
        number, end if ended else "hung", time.monotonic() - since_s, log.read_text(errors="replace")
    )


def soak(runs: int, options: Sequence[str], folder: Path, limit_s: float) -> bool:
    """Whether all these runs passed; says each when it has ended."""
    well = True
    with (folder / "runs.txt").open("w") as file:

        def say(line: object) -> None:
            print(line, flush=True)
            print(line, file=file, flush=True)

        say(HEAD)
        for number in range(1, runs + 1):
            run = one_run(number, options, folder, limit_s)
            say(run)
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
            return 0 if soak(asked.runs, asked.options, asked.folder, 60 * asked.limit_minutes) else 1
        except KeyboardInterrupt:
            print(f"broken off; the runs so far are in {asked.folder / 'runs.txt'}")
            return 130


if __name__ == "__main__":
    sys.exit(main())
