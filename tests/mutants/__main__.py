"""Puts one fault after the other into the code and looks whether the tests that concern it see it.

First all these tests run without a fault: a row whose tests do not pass then, or are skipped, is void. A
fault is killed when one of its row's tests fails, crashes, or does not end within a limit; it survives when
all pass.
"""

from __future__ import annotations

import argparse
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .mutant import Mutant
from .table import areas, problems, rows
from .tree import CannotBuild, Tree
from .trial import Outcome, Trial, warm_up

FLOOR_S = 30.0  # of a limit: a machine may be busy with other things
MARGIN = 10.0  # of a limit, over what the tests took without a fault
UNMUTATED_LIMIT_S = 900.0  # for the tests of one file
POLL_S = 0.2

KILLED, SURVIVED, EXPLAINED, UNTRUE, VOID = "killed", "survived", "explained", "explained, yet killed", "void"
COLORS = {KILLED: "green", SURVIVED: "red", EXPLAINED: "yellow", UNTRUE: "red", VOID: "red"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a row came to, and why."""

    row: Mutant
    word: str
    why: str
    seconds: float


class Jobs(Generic[T]):
    """Several trees, and what runs in each."""

    def __init__(self, trees: Sequence[Tree], tick: Callable[[], None]) -> None:
        self._free = list(trees)
        self._tick = tick
        self._busy: dict[int, tuple[Trial, Tree, ExitStack, T, float]] = {}

    def run(
        self, work: Sequence[T], begin: Callable[[T, Tree, ExitStack], Trial]
    ) -> Iterator[tuple[T, Outcome | CannotBuild, float, Tree]]:
        """Yields what came of each piece of work, and how long it took."""
        waiting = list(reversed(work))
        try:
            while waiting or self._busy:
                while waiting and self._free:
                    item, tree, stack = waiting.pop(), self._free.pop(), ExitStack()
                    began_s = time.monotonic()
                    try:
                        trial = begin(item, tree, stack)
                    except CannotBuild as error:
                        stack.close()
                        self._free.append(tree)
                        yield item, error, 0.0, tree
                    else:
                        self._busy[trial.pidfd] = trial, tree, stack, item, began_s
                ready, _, _ = select.select(list(self._busy), [], [], POLL_S)
                for pidfd in ready:
                    trial, tree, stack, item, began_s = self._busy.pop(pidfd)
                    outcome = trial.outcome()
                    stack.close()
                    yield item, outcome, time.monotonic() - began_s, tree
                    self._free.append(tree)
                self._tick()
        finally:
            for trial, _, stack, _, _ in self._busy.values():
                trial.stop()
                stack.close()


def unmutated(tests: Sequence[str], trees: Sequence[Tree], bar: Progress) -> dict[str, float]:
    """Seconds of each test function that passes in an unchanged tree, by `file::name`."""
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    passed: dict[str, float] = {}
    bad: set[str] = set()
    task = bar.add_task("without a fault", total=len(files))
    jobs: Jobs[list[str]] = Jobs(trees, bar.refresh)
    for wanted, outcome, _, tree in jobs.run(
        list(files.values()), lambda wanted, tree, _: Trial(tree, wanted, UNMUTATED_LIMIT_S, all_of_them=True)
    ):
        assert isinstance(outcome, Outcome)
        for node, seconds in outcome.passed.items():
            name = node.partition("[")[0]
            passed[name] = passed.get(name, 0.0) + seconds
        if outcome.end != "passed":
            bad.update({outcome.failed.partition("[")[0], outcome.at.partition("[")[0]} - {""})
            bar.console.print(f"[red]without a fault, {wanted[0]} ...: {outcome.end} {outcome.failed}[/red]")
            bar.console.print(tree.log.read_text()[-2000:], markup=False, highlight=False)
        bar.advance(task)
    bar.remove_task(task)
    return {name: seconds for name, seconds in passed.items() if name not in bad}


def seconds_of(test: str, passed: dict[str, float]) -> float | None:
    """Of a file or function, instances and all; None: it did not pass."""
    own = test.partition("[")[0]
    found = [seconds for name, seconds in passed.items() if name == own or name.startswith(f"{own}::")]
    return sum(found) if found else None


def verdict(row: Mutant, outcome: Outcome | CannotBuild, seconds: float) -> Verdict:
    """What a run says of a row."""
    if isinstance(outcome, CannotBuild):
        return Verdict(row, VOID, f"does not compile: {outcome}", seconds)
    python = row.file.endswith(".py")
    match outcome.end:
        case "not collected" | "lost":
            return Verdict(row, VOID, f"its tests cannot be run: {outcome.end}", seconds)
        case "passed" if python and not outcome.loaded:
            return Verdict(row, VOID, "its tests never import the file", seconds)
        case "passed" if row.survives:
            return Verdict(row, EXPLAINED, row.survives, seconds)
        case "passed":
            return Verdict(row, SURVIVED, "no test fails", seconds)
        case "failed":
            why = outcome.failed
        case end:
            why = f"{end} in {outcome.at}"
    return Verdict(row, UNTRUE if row.survives else KILLED, why, seconds)


def judge(table: Sequence[Mutant], num_jobs: int, console: Console) -> list[Verdict]:
    """Runs all rows."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    folder = Path(tempfile.mkdtemp(prefix="mut-"))
    bar = Progress(*columns, console=console, auto_refresh=False, transient=True)  # no thread: we fork
    try:
        trees = [Tree(folder / str(number)) for number in range(num_jobs)]
        with bar:
            tests = list(dict.fromkeys(test for row in table for test in row.tests))
            passed = unmutated(tests, trees, bar)
            return list(_mutated(table, passed, trees, bar))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _mutated(
    table: Sequence[Mutant], passed: dict[str, float], trees: Sequence[Tree], bar: Progress
) -> Iterator[Verdict]:
    task = bar.add_task("faults", total=len(table))
    took = {test: seconds_of(test, passed) for row in table for test in row.tests}
    good = [row for row in table if all(took[test] is not None for test in row.tests)]

    def begin(row: Mutant, tree: Tree, stack: ExitStack) -> Trial:
        stack.enter_context(tree.fault(row))
        quickest = sorted(row.tests, key=lambda test: took[test] or 0.0)
        limit_s = FLOOR_S + MARGIN * sum(took[test] or 0.0 for test in row.tests)
        return Trial(tree, quickest, limit_s, all_of_them=False)

    def said(found: Verdict) -> Verdict:
        color = COLORS[found.word]
        head = f"[{color}]{found.word:9}[/{color}] {found.seconds:5.1f} s  "
        bar.console.print(head, end="")
        bar.console.print(f"{found.row.name}  ({found.why})", markup=False, highlight=False, soft_wrap=True)
        bar.advance(task)
        return found

    for row in table:
        if row not in good:
            failed = next(test for test in row.tests if took[test] is None)
            yield said(Verdict(row, VOID, f"does not pass, or is skipped, without it: {failed}", 0.0))
    jobs: Jobs[Mutant] = Jobs(trees, bar.refresh)
    for row, outcome, seconds, _ in jobs.run(good, begin):
        yield said(verdict(row, outcome, seconds))


def chosen(word: str, path: str) -> list[Mutant]:
    """Rows whose name `word` is found in, a regular expression, and that are about a file whose path has `path`, or stand in one."""
    return [
        row
        for area, rows_of_it in areas().items()
        for row in rows_of_it
        if re.search(word, row.name) and (path in row.file or path in f"tests/mutants/{area}.py")
    ]


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="WORD", help="rows whose name it is found in")
    parser.add_argument("--file", metavar="PATH", help="rows about, or in, files whose path has it")
    parser.add_argument("--list", action="store_true", help="say the rows, run nothing")
    parser.add_argument("--check", action="store_true", help="look at the table, run nothing")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="rows at a time")
    options = parser.parse_args(words)
    console = Console()
    table = rows()
    if found := problems(table):
        console.print("\n".join(found), style="red", markup=False)
        return 1
    table = chosen(options.only or "", options.file or "")
    if options.list or options.check:
        for row in table if options.list else ():
            console.print(f"{row.file}: {row.name}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"{len(table)} rows, nothing wrong with them")
        return 0
    began_s = time.monotonic()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs without
    warm_up()
    try:
        verdicts = judge(table, max(options.jobs, 1), console)
    except KeyboardInterrupt:
        console.print("stopped; nothing of it is left")
        return 130
    counts = Counter(found.word for found in verdicts)
    parts = ", ".join(f"{counts[word]} {word}" for word in COLORS if counts[word])
    console.print(f"{len(verdicts)} faults in {time.monotonic() - began_s:.0f} s: {parts}")
    for found in verdicts:
        if found.word not in {KILLED, EXPLAINED}:
            console.print(f"  {found.word}: {found.row.file}: {found.row.name}", markup=False, soft_wrap=True)
    return 0 if counts.keys() <= {KILLED, EXPLAINED} else 1


if __name__ == "__main__":
    sys.exit(main())
