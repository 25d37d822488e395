"""Puts one fault after the other into the code and looks whether the tests that concern it see it.

A fault is killed when one of its row's tests fails, crashes, or does not end within a limit; it survives when
all pass. The test that has killed it runs once without a fault, and its row is void where it does not pass.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from .mutant import Mutant
from .table import areas, problems, rows
from .tree import CannotBuild, Tree
from .trial import Outcome, Trial, warm_up

LIMIT_S = 30.0  # for each part of a test: a machine may be busy with other things
MARGIN = 10.0  # of a limit, over what the test took without a fault
UNMUTATED_LIMIT_S = 300.0
POLL_S = 0.2

KILLED, SURVIVED, EXPLAINED, UNTRUE, VOID = "killed", "survived", "explained", "explained, yet killed", "void"
COLORS = {KILLED: "green", SURVIVED: "red", EXPLAINED: "yellow", UNTRUE: "red", VOID: "red"}
GOOD = {KILLED, EXPLAINED}


@dataclass(frozen=True, slots=True)
class Faulty:
    """To do: a row's tests with its fault.

    Attributes:
        row: that row.
        limit_s: for each part of a test.
    """

    row: Mutant
    limit_s: float = LIMIT_S


@dataclass(frozen=True, slots=True)
class Faultless:
    """To do: a test that has killed a fault, without it."""

    test: str


@dataclass(frozen=True, slots=True)
class Killed:
    """A row that a test has killed, if that test passes without its fault.

    Attributes:
        row: that row.
        why: how it ended.
        seconds: that it took.
        hung_s: the limit that it did not end within; 0: it failed.
    """

    row: Mutant
    why: str
    seconds: float
    hung_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a row came to, and why."""

    row: Mutant
    word: str
    why: str
    seconds: float


class Trials:
    """What is to be done, and the trees in which it is."""

    def __init__(self, trees: Sequence[Tree], work: Sequence[Faulty | Faultless]) -> None:
        self._free = list(trees)
        self._work = deque(work)
        self._busy: dict[int, tuple[Trial, Tree, ExitStack, Faulty | Faultless, float]] = {}

    def next(self, item: Faulty | Faultless) -> None:
        """Has something done before all else."""
        self._work.appendleft(item)

    def run(
        self, tick: Callable[[], None]
    ) -> Iterator[tuple[Faulty | Faultless, Outcome | CannotBuild, float]]:
        """Yields what came of each piece of work, and how long it took; `tick` is called now and then."""
        try:
            while self._work or self._busy:
                while self._work and self._free:
                    item, tree, stack = self._work.popleft(), self._free.pop(), ExitStack()
                    try:
                        trial = _begin(item, tree, stack)
                    except CannotBuild as error:
                        stack.close()
                        self._free.append(tree)
                        yield item, error, 0.0
                    else:
                        self._busy[trial.pidfd] = trial, tree, stack, item, time.monotonic()
                ready, _, _ = select.select(list(self._busy), [], [], POLL_S)
                for pidfd in ready:
                    trial, tree, stack, item, began_s = self._busy.pop(pidfd)
                    outcome = trial.outcome()
                    stack.close()
                    self._free.append(tree)
                    yield item, outcome, time.monotonic() - began_s
                tick()
        finally:
            for trial, _, stack, _, _ in self._busy.values():
                trial.stop()
                stack.close()


def _begin(item: Faulty | Faultless, tree: Tree, stack: ExitStack) -> Trial:
    """Raises CannotBuild, as `Tree.fault`."""
    if isinstance(item, Faultless):
        return Trial(tree, [item.test], UNMUTATED_LIMIT_S)
    stack.enter_context(tree.fault(item.row))
    return Trial(tree, item.row.tests, item.limit_s)


def verdict(item: Faulty, outcome: Outcome | CannotBuild, seconds: float) -> Verdict | tuple[str, Killed]:
    """What a run says of a row; or the test that has killed it, which has to pass without the fault."""
    row = item.row
    if void := _void(row, outcome):
        return Verdict(row, VOID, void, seconds)
    assert isinstance(outcome, Outcome)
    if outcome.end == "passed":
        word, why = (EXPLAINED, row.survives) if row.survives else (SURVIVED, "no test fails")
        return Verdict(row, word, why, seconds)
    if outcome.end == "failed":
        return outcome.failed, Killed(row, outcome.failed, seconds, 0.0)
    hung_s = item.limit_s if outcome.end == "hung" else 0.0
    return outcome.at, Killed(row, f"{outcome.end} in {outcome.at}", seconds, hung_s)


def _void(row: Mutant, outcome: Outcome | CannotBuild) -> str:
    """Why a run says nothing of a row, or an empty text."""
    if isinstance(outcome, CannotBuild):
        return f"does not compile: {outcome}"
    if outcome.end in ("not collected", "lost") or (outcome.end != "passed" and not outcome.at):
        return f"its tests cannot be run: {outcome.end}"
    if outcome.end == "passed" and not outcome.passed:
        return "its tests are skipped"
    if outcome.end == "passed" and row.file.endswith(".py") and not outcome.loaded:
        return "its tests never import the file"
    return ""


def judge(table: Sequence[Mutant], num_jobs: int, tick: Callable[[], None]) -> Iterator[Verdict]:
    """Runs all rows."""
    folder = Path(tempfile.mkdtemp(prefix="mut-"))
    try:
        trees = [Tree(folder / str(number)) for number in range(num_jobs)]
        yield from _judge(Trials(trees, [Faulty(row) for row in table]), tick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judge(trials: Trials, tick: Callable[[], None]) -> Iterator[Verdict]:
    faultless: dict[str, float | None] = {}  # seconds that a test takes; None: it does not pass
    pending: dict[str, list[Killed]] = {}
    for item, outcome, seconds in trials.run(tick):
        if isinstance(item, Faultless):
            test = item.test
            assert isinstance(outcome, Outcome)
            passes = outcome.end == "passed" and outcome.passed
            faultless[test] = sum(outcome.passed.values()) if passes else None
        else:
            found = verdict(item, outcome, seconds)
            if isinstance(found, Verdict):
                yield found
                continue
            test, killed = found
            if test not in faultless and test not in pending:
                trials.next(Faultless(test))
            pending.setdefault(test, []).append(killed)
        if test in faultless:
            for killed in pending.pop(test):
                took_s = faultless[test]
                if took_s is None:
                    yield Verdict(killed.row, VOID, f"fails without it, too: {test}", killed.seconds)
                elif 0.0 < killed.hung_s < MARGIN * took_s:
                    trials.next(Faulty(killed.row, MARGIN * took_s))
                else:
                    word = UNTRUE if killed.row.survives else KILLED
                    yield Verdict(killed.row, word, killed.why, killed.seconds)


def say(verdicts: Iterable[Verdict], bar: Progress, task: TaskID) -> Iterator[Verdict]:
    """Passes them on, each with its line."""
    for found in verdicts:
        color = COLORS[found.word]
        bar.console.print(f"[{color}]{found.word:9}[/{color}] {found.seconds:5.1f} s  ", end="")
        bar.console.print(f"{found.row.name}  ({found.why})", markup=False, highlight=False, soft_wrap=True)
        bar.advance(task)
        yield found


def chosen(word: str, path: str) -> list[Mutant]:
    """Rows whose name `word` is found in, a regular expression, and that are about a file whose path has `path`, or stand in one."""
    return [
        row
        for area, rows_of_it in areas().items()
        for row in rows_of_it
        if re.search(word, row.name) and (path in row.file or path in f"tests/mutants/{area}.py")
    ]


class Results:
    """A file of what rows came to, so that a run which was interrupted goes on where it was.

    It knows a row by all that stands in it, and not what has become of the code since.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file.exists() else []
        self._good = {entry["row"] for entry in map(json.loads, lines) if entry["word"] in GOOD}

    def left(self, table: Sequence[Mutant]) -> list[Mutant]:
        """Rows that are neither killed nor explained in it."""
        return [row for row in table if _key(row) not in self._good]

    def note(self, verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
        """Passes them on, each when it is in the file."""
        for found in verdicts:
            entry = {"row": _key(found.row), "name": found.row.name, "word": found.word, "why": found.why}
            with self._file.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            yield found


def _key(row: Mutant) -> str:
    return hashlib.sha256(repr(row).encode()).hexdigest()


def processor_s() -> float:
    """Of this process, and of all that have run for it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(it.ru_utime + it.ru_stime for it in used)


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="WORD", help="rows whose name it is found in")
    parser.add_argument("--file", metavar="PATH", help="rows about, or in, files whose path has it")
    parser.add_argument("--list", action="store_true", help="say the rows, run nothing")
    parser.add_argument("--check", action="store_true", help="look at the table, run nothing")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="rows at a time")
    parser.add_argument(
        "--results", metavar="FILE", type=Path, help="rows killed or explained there are left out; adds to it"
    )
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
    results = Results(options.results) if options.results else None
    if results is not None:
        table = results.left(table)
    began_s = time.monotonic()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs without
    warm_up()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=console, auto_refresh=False, transient=True)  # no thread: we fork
    verdicts: list[Verdict] = []
    try:
        with bar:
            judged = judge(table, max(options.jobs, 1), bar.refresh)
            noted = judged if results is None else results.note(judged)
            verdicts.extend(say(noted, bar, bar.add_task("faults", total=len(table))))
    except KeyboardInterrupt:
        console.print("stopped; nothing of it is left")
        return 130
    counts = Counter(it.word for it in verdicts)
    parts = ", ".join(f"{counts[word]} {word}" for word in COLORS if counts[word])
    took = f"{time.monotonic() - began_s:.0f} s, {processor_s():.0f} s of processor time"
    console.print(f"{len(verdicts)} faults in {took}: {parts}", soft_wrap=True)
    for bad in verdicts:
        if bad.word not in GOOD:
            console.print(f"  {bad.word}: {bad.row.file}: {bad.row.name}", markup=False, soft_wrap=True)
    return 0 if counts.keys() <= GOOD else 1


if __name__ == "__main__":
    sys.exit(main())
