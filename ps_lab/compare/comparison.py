"""Runs put together by what is compared: a model, under a profile, with so many workers, at a learning rate.

All runs of one such combination, over seeds and repeats, are an arm. Each model is looked at in its best arm,
and at the common learning rate. Nothing is tested here, and nothing drawn.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from ps_lab.compare.folder import Folder
from ps_lab.compare.metrics import RunFigures
from ps_lab.compare.results import RunData, read_runs
from ps_lab.experiments.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Runs that differ in seed and repeat alone.

    Attributes:
        model: or baseline.
        profile: its name.
        workers: number.
        lr: learning rate; None: the script's own.
        figures: of the runs that have ended, in order of the plan.
        missing: runs without a result.
    """

    model: str
    profile: str
    workers: int
    lr: float | None
    figures: tuple[RunFigures, ...]
    missing: int

    def by_seed(self, value: Callable[[RunFigures], float | None]) -> dict[int, float]:
        """The value of each seed, mean over its repeats; seeds that lack it in a repeat are left out."""
        found: dict[int, list[float | None]] = {}
        for one in self.figures:
            found.setdefault(one.data.run.seed, []).append(value(one))
        return {
            seed: math.fsum(known) / len(known)
            for seed, values in found.items()
            if len(known := [one for one in values if one is not None and math.isfinite(one)]) == len(values)
        }

    @cached_property
    def good(self) -> tuple[RunFigures, ...]:
        """Runs that neither failed nor diverged."""
        return tuple(one for one in self.figures if not one.data.failed and not one.diverged)

    @cached_property
    def target_s(self) -> dict[int, float]:
        """Seconds to the target, of seeds that reached it in every repeat."""
        return self.by_seed(lambda one: None if one.data.failed else one.target_s)

    @cached_property
    def quality(self) -> dict[int, float]:
        """The metric at the end, by seed."""
        return self.by_seed(lambda one: None if one.data.failed or one.diverged else one.quality)

    @cached_property
    def samples_per_s(self) -> dict[int, float]:
        """By seed; a run that diverged computes with what is no number, and is as little of a speed."""
        return self.by_seed(lambda one: None if one.data.failed or one.diverged else one.samples_per_s)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of runs that have ended."""
        return tuple(dict.fromkeys(one.data.run.seed for one in self.figures))

    @property
    def diverged(self) -> int:
        """Runs whose loss was no number."""
        return sum(one.diverged for one in self.figures)

    @property
    def failed(self) -> int:
        """Runs that ended as they should not."""
        return sum(one.data.failed for one in self.figures)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model under a profile with so many workers, at all its learning rates.

    Attributes:
        model: or baseline.
        profile: its name.
        workers: number.
        arms: one per learning rate, in the grid's order.
        best: the arm that did best; the first where no run has ended.
        common: the arm at the common learning rate; None: there is no such rate.
    """

    model: str
    profile: str
    workers: int
    arms: tuple[Arm, ...]
    best: Arm
    common: Arm | None

    @property
    def at_edge(self) -> bool:
        """The best rate is the smallest or largest of several: a better one may lie beyond."""
        rates = sorted(arm.lr for arm in self.arms if arm.lr is not None)
        return len(rates) > 1 and self.best.lr in (rates[0], rates[-1])


class Comparison:
    """The runs of an experiment, grouped by what is compared.

    Attributes:
        experiment: that was run.
        runs: all, in the order of the plan; some may not have ended.
        figures: of those that have.
        entries: by (model, profile, workers), in the experiment's order.
    """

    def __init__(self, experiment: Experiment, runs: tuple[RunData, ...]) -> None:
        self.experiment = experiment
        self.runs = runs
        self.figures = tuple(RunFigures(data, experiment.stop.target) for data in runs if data.ended)
        self._planned = Counter(map(_arm_of, runs))
        self._ended: dict[tuple[object, ...], list[RunFigures]] = defaultdict(list)
        for one in self.figures:
            self._ended[_arm_of(one.data)].append(one)
        self.entries = {
            (model, profile.name, workers): self._entry(model, profile.name, workers)
            for workers in experiment.setup.workers
            for profile in experiment.profiles
            for model in experiment.parties
        }

    @classmethod
    def read(cls, folder: Folder, like: Comparison | None = None) -> Comparison:
        """Reads what a folder holds.

        Args:
            folder: which.
            like: by whose target and metric its runs are judged; None: by their own.
        """
        experiment = folder.experiment
        if like is not None:
            stop = replace(experiment.stop, target=like.experiment.stop.target)
            experiment = replace(experiment, stop=stop)
        return cls(experiment, read_runs(folder))

    @property
    def metric(self) -> str:
        """By which quality is judged."""
        target = self.experiment.stop.target
        return "loss" if target is None else target.metric

    @property
    def larger_is_better(self) -> bool:
        """Of that metric."""
        target = self.experiment.stop.target
        return target is not None and target.larger_is_better

    @property
    def simulated(self) -> bool:
        """The runs are those of a simulation."""
        return any(data.facts.simulated for data in self.runs if data.facts is not None)

    @property
    def workers(self) -> int:
        """The number of workers that figures of single settings are drawn for: the largest."""
        return max(self.experiment.setup.workers)

    def _entry(self, model: str, profile: str, workers: int) -> Entry:
        rates = self.experiment.learning_rates
        arms = tuple(self._arm(model, profile, workers, lr) for lr in rates.of(model))
        seeds = [frozenset(arm.seeds) for arm in arms if arm.figures]
        shared = seeds[0].intersection(*seeds[1:]) if seeds else frozenset()
        return Entry(
            model=model,
            profile=profile,
            workers=workers,
            arms=tuple(sorted(arms, key=lambda arm: arm.lr or 0.0)),
            best=min(arms, key=lambda arm: self._rank(arm, shared)),
            common=next((arm for arm in arms if rates.common is not None and arm.lr == rates.common), None),
        )

    def _arm(self, model: str, profile: str, workers: int, lr: float | None) -> Arm:
        key = (model, profile, workers, lr)
        figures = tuple(self._ended.get(key, ()))
        return Arm(
            model=model,
            profile=profile,
            workers=workers,
            lr=lr,
            figures=figures,
            missing=self._planned[key] - len(figures),
        )

    def _rank(self, arm: Arm, seeds: frozenset[int]) -> tuple[float, ...]:
        """The smaller, the better: most of these seeds that reached the target, then soonest; then quality.

        The seeds are those that all rates have: one that has been tried with more is no better for it.
        """
        sign = -1.0 if self.larger_is_better else 1.0
        quality = [sign * value for seed, value in arm.quality.items() if seed in seeds]
        logs = [math.log(max(value, 1e-9)) for seed, value in arm.target_s.items() if seed in seeds]
        return (
            -len(logs),
            math.fsum(logs) / len(logs) if logs else math.inf,
            -len(quality),
            math.fsum(quality) / len(quality) if quality else math.inf,
        )


def _arm_of(data: RunData) -> tuple[object, ...]:
    return data.run.model, data.run.profile.name, data.run.workers, data.run.lr
