"""A comparison under way: the runs that have no result yet, one after the other, each shown as it ends."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ps_lab.cluster.cluster import Event
from ps_lab.cluster.display import Display
from ps_lab.cluster.interrupts import signals_into
from ps_lab.compare import facts
from ps_lab.compare.folder import Folder, RunFolder
from ps_lab.compare.local_runner import LocalRunner, check
from ps_lab.compare.metrics import RunFigures
from ps_lab.compare.outcome import Ending, RunOutcome
from ps_lab.compare.results import read_run, read_runs
from ps_lab.compare.scores import Scores
from ps_lab.errors import RunsFailed
from ps_lab.experiments.experiment import Experiment
from ps_lab.experiments.section import nearest
from ps_wire.errors import UsageError

LOG = "output.log"  # of all processes of a run, in its folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which runs of a comparison are done now.

    Attributes:
        only: runs of this model alone; "": of all.
        budget_s: after which no further run begins; None: no such limit.
        fresh: see `Cluster`.
    """

    only: str = ""
    budget_s: float | None = None
    fresh: bool = False


def check_only(experiment: Experiment, only: str) -> None:
    """Refuses a model that the experiment does not have.

    Raises:
        UsageError: so.
    """
    if only and only not in experiment.parties:
        raise UsageError(f"--only {only!r}: {nearest(only, experiment.parties)}", model=only)


def compare(folder: Folder, scripts: Path, choice: Choice, console: Console) -> None:
    """Does the runs that are missing. In the main thread: it takes over the signals that stop a program.

    Args:
        folder: of the comparison; whoever adds runs holds it.
        scripts: the folder that the experiment's scripts are named from.
        choice: which.
        console: shows progress, and a line per run.

    Raises:
        UsageError: the experiment asks for what cannot be run here, or another process adds runs.
        Interrupted: a signal came; what had ended is kept.
        RunsFailed: some runs failed; the others are done.
    """
    check(folder.experiment)
    check_only(folder.experiment, choice.only)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with signals_into(events), folder.held(), Display(console) as display:
        missing = [one for one in folder.missing() if choice.only in ("", one.run.model)]
        done = [one for one in read_runs(folder) if one.ended]
        display.note(
            f"{folder.experiment.name}: {len(folder.runs)} runs, {len(done)} done, {len(missing)} to do; "
            f"the output of servers and workers is in {folder.path}/runs/*/{LOG}"
        )
        scores = Scores(folder.experiment, (one.run for one in folder.runs), done)
        comparing = _Comparing(missing, display, scores)
        with LocalRunner(scripts, events=events, on_progress=comparing.show, fresh=choice.fresh) as runner:
            comparing.all(runner, facts.gather(scripts / folder.experiment.script), choice.budget_s)
    console.print(scores.table())
    if comparing.failed:
        raise RunsFailed(
            f"{len(comparing.failed)} of {len(missing)} runs failed: {comparing.failed[0]}",
            failed=len(comparing.failed),
        )


class _Comparing:
    """Where a comparison is, for people.

    Attributes:
        failed: runs that did, with their reasons.
    """

    def __init__(self, missing: list[RunFolder], display: Display, scores: Scores) -> None:
        self.failed: list[str] = []
        self._missing = missing
        self._display = display
        self._scores = scores
        self._done = 0
        self._began_s = self._ended_s = time.monotonic()  # the first run began, the last one ended

    def all(self, runner: LocalRunner, found: facts.Facts, budget_s: float | None) -> None:
        """Does them, until they are done or the budget is over."""
        for one in self._missing:
            if budget_s is not None and time.monotonic() - self._began_s >= budget_s:
                left = len(self._missing) - self._done
                self._display.note(f"the budget of {budget_s:g} s is over: {left} runs are left for --resume")
                return
            one.begin(found)
            outcome = runner.run(one.run, records=one.records, log=one.path / LOG)
            one.end(outcome)
            self._done += 1
            self._ended_s = time.monotonic()
            if outcome.ending is Ending.FAILED:
                self.failed.append(f"{one.run}: {outcome.reason}")
            figures = self._scores.add(read_run(one))
            self._display.note(f"{self._done}/{len(self._missing)}  {_said(one, outcome, figures)}")

    def show(self, line: str) -> None:
        """Progress of the run that is under way."""
        one = self._missing[self._done]
        self._display.progress(
            f"{self._done + 1}/{len(self._missing)}{self._left()}  {one.run}:  {line}",
            self._scores.table(one.run.profile.name),
        )

    def _left(self) -> str:
        """Says how long the others will take, once one has ended."""
        if not self._done:
            return ""
        mean_s = (self._ended_s - self._began_s) / self._done
        left_s = time_left_s(mean_s, len(self._missing) - self._done, time.monotonic() - self._ended_s)
        minutes, seconds = divmod(round(left_s), 60)
        return f", about {minutes}:{seconds:02} left"


def time_left_s(mean_s: float, runs: int, going_s: float) -> float:
    """Of so many runs, the first of which is going on; one that takes long ends at any moment."""
    return mean_s * (runs - 1) + max(mean_s - going_s, 0.0)


def _said(one: RunFolder, outcome: RunOutcome, figures: RunFigures) -> str:
    if outcome.ending is Ending.FAILED:
        return f"{one.run}: FAILED: {outcome.reason}"
    parts = [f"{outcome.ended_unix_s - outcome.started_unix_s:.1f} s"]
    parts += [f"{name} {value:.4g}" for name, value in sorted(outcome.metrics.items())]
    if figures.diverged:
        parts.append("DIVERGED")
    if figures.target is not None:
        when = figures.target_s
        reached = "not reached" if when is None else f"after {when:.1f} s"
        parts.append(f"{figures.target} {reached}")
    if figures.tau is not None:
        parts.append(f"staleness mean {figures.tau.mean:.1f} max {figures.tau.max}")
    return f"{one.run}: {'  '.join(parts)}"
