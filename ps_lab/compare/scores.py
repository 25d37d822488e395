"""Scores: what runs have come to so far, as a table on a terminal, with a row for each model.

It grows while a comparison goes on: whoever does the runs adds each as it ends. Figures are those of the
report; a figure that no run has is left empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from rich.table import Table

from ps_lab.compare.metrics import RunFigures, of_all
from ps_lab.compare.results import RunData
from ps_lab.experiments.experiment import Experiment
from ps_lab.experiments.plan import Run

CAPTION = (
    "seconds: from the first step to the last; updates: optimizer steps on the servers; staleness: updates "
    "between reading the weights and applying the gradient; at the gate: part of the time that workers "
    "waited for each other. Means over runs, p99 and max over all their pushes"
)
_Row = tuple[str, str, int, float | None]


class Scores:
    """Figures of runs by model, profile, number of workers and learning rate."""

    def __init__(self, experiment: Experiment, planned: Iterable[Run], ended: Iterable[RunData] = ()) -> None:
        """Has the runs that have ended by now.

        Args:
            experiment: of all runs.
            planned: all runs, in their order.
            ended: those with a result.
        """
        self._experiment = experiment
        self._planned: dict[_Row, int] = {}
        for run in planned:
            self._planned[_row(run)] = self._planned.get(_row(run), 0) + 1
        self._figures: dict[_Row, list[RunFigures]] = {row: [] for row in self._planned}
        for one in ended:
            self.add(one)

    def add(self, data: RunData) -> RunFigures:
        """A run that has ended; its figures."""
        figures = RunFigures(data, self._experiment.stop.target)
        self._figures[_row(data.run)].append(figures)
        return figures

    def table(self, profile: str | None = None) -> Table:
        """All rows, or those of one profile."""
        several = len({row[2] for row in self._planned}) > 1
        target = self._experiment.stop.target
        metric = "loss" if target is None else target.metric
        table = Table(title=self._experiment.name, caption=CAPTION, caption_justify="left")
        names = ["model", "profile", *(["workers"] if several else []), "lr"]
        for name in names:
            table.add_column(name, justify="right" if name in {"workers", "lr"} else "left", no_wrap=True)
        for name in ("runs", "seconds", metric, "samples/s", "updates/s"):
            table.add_column(name, justify="right")
        for name in ("staleness mean", "p99", "max", "at the gate"):
            table.add_column(name, justify="right")
        for row, figures in self._figures.items():
            model, its_profile, workers, lr = row
            if profile not in (None, its_profile):
                continue
            rate = "" if lr is None else f"{lr:g}"
            cells = [model, its_profile, *([str(workers)] if several else []), rate]
            table.add_row(*cells, _ended(figures, self._planned[row]), *_cells(figures))
        return table


def _row(run: Run) -> _Row:
    return run.model, run.profile.name, run.workers, run.lr


def _ended(figures: list[RunFigures], planned: int) -> str:
    failed = sum(one.data.failed for one in figures)
    diverged = sum(one.diverged and not one.data.failed for one in figures)
    lost = [f"{count} {what}" for count, what in ((failed, "failed"), (diverged, "diverged")) if count]
    return ", ".join([f"{len(figures)}/{planned}", *lost])


def _cells(figures: list[RunFigures]) -> Iterable[str]:
    good = [one for one in figures if not one.data.failed and not one.diverged]
    yield _mean(good, lambda one: one.wall_s, ".1f")
    yield _mean(good, lambda one: one.quality, ".4f")
    yield _mean(good, lambda one: one.samples_per_s, ",.0f")
    yield _mean(good, lambda one: one.updates_per_s, ",.0f")
    yield _mean(good, lambda one: one.tau.mean if one.tau else None, ".2f")
    tau = of_all(good, "tau")
    yield "" if tau is None else str(tau.p99)
    yield "" if tau is None else str(tau.max)
    yield _mean(good, gate_share, ".0%")


def gate_share(one: RunFigures) -> float | None:
    """The part of all steps' time that workers waited for each other; None: nothing was recorded."""
    split = one.time_split()
    whole = sum(split.values())
    return split["gate"] / whole if whole and not math.isnan(split["gate"]) else None


def _mean(figures: list[RunFigures], value: Callable[[RunFigures], float | None], form: str) -> str:
    known = [found for one in figures if (found := value(one)) is not None and math.isfinite(found)]
    return format(math.fsum(known) / len(known), form) if known else ""
