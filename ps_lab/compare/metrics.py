"""The figures of one run, computed from its records and its outcome. `docs/compare.md` defines each.

Time is counted from the beginning of the first step of any worker. Workers' clocks are those of their hosts,
so between hosts times are as good as these agree. Figures that a run cannot have are None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ps_lab.compare.outcome import Fault
from ps_lab.compare.results import Numbers, Recording, RunData, joined
from ps_lab.experiments.experiment import BASELINES, Target

PARTS = ("compute", "push", "gate", "pull", "other")
WINDOW_STEPS = 10  # at least, of the running mean by which a logged metric reaches a target


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution in numbers: of tau, or of clock gaps.

    Attributes:
        mean: of all.
        p99: nearest rank.
        max: of all.
        count: how many there are.
    """

    mean: float
    p99: int
    max: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The effect of a fault on a run.

    Attributes:
        fault: which.
        back_s: until the worker's next step had ended; None: none did.
        stalled_s: the longest time meanwhile in which none of the others ended a step.
    """

    fault: Fault
    back_s: float | None
    stalled_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric over a run, one element per step that logged it, in the order in which steps ended.

    Attributes:
        time_s: since the run's first step.
        samples: trained on by then, of all workers.
        updates: applied by then.
        values: of the metric.
    """

    time_s: Numbers
    samples: Numbers
    updates: Numbers
    values: Numbers


class RunFigures:
    """The figures of one run.

    Attributes:
        data: the run.
        target: that it was to reach.
        metric: by which quality is judged: the target's, else the loss.
    """

    def __init__(self, data: RunData, target: Target | None) -> None:
        self.data = data
        self.target = target
        self.metric = "loss" if target is None else target.metric

    @property
    def larger_is_better(self) -> bool:
        """Of the metric of quality."""
        return self.target is not None and self.target.larger_is_better

    @property
    def synchronous(self) -> bool:
        """One update is made of all workers' gradients."""
        return self.data.run.model in BASELINES or self.data.run.model.startswith("bsp")

    @cached_property
    def recorded(self) -> tuple[Recording, ...]:
        """Recordings that have steps."""
        return tuple(recording for recording in self.data.recordings if recording.steps)

    @cached_property
    def start_unix_s(self) -> float | None:
        """When the first step of any worker began."""
        return min((float(one.started_unix_s[0]) for one in self.recorded), default=None)

    @cached_property
    def wall_s(self) -> float | None:
        """From there to the end of the last step."""
        if self.start_unix_s is None:
            return None
        return max(float(one.ended_unix_s[-1]) for one in self.recorded) - self.start_unix_s

    @cached_property
    def _order(self) -> NDOrder:
        return np.argsort(joined([one.ended_unix_s for one in self.recorded]), kind="stable")

    def column(self, name: str) -> Numbers:
        """A column of all workers, in the order in which steps ended."""
        return joined([one.numbers(name) for one in self.recorded])[self._order]

    @cached_property
    def time_s(self) -> Numbers:
        """When each step ended, in that order, since the run's first step."""
        return joined([one.ended_unix_s for one in self.recorded])[self._order] - (self.start_unix_s or 0.0)

    @cached_property
    def updates_by_step(self) -> Numbers:
        """Updates applied by the end of each step, in that order."""
        applied = joined([_applied(one) for one in self.recorded])[self._order] > 0
        if not self.synchronous:
            return np.cumsum(applied).astype(np.float64)
        clocks = np.where(applied, self.column("clock"), -1.0)
        return np.maximum.accumulate(clocks) + 1 if clocks.size else clocks

    @cached_property
    def updates(self) -> int:
        """Applied in the whole run; under synchronous models one for all workers' gradients of a step."""
        return int(self.updates_by_step[-1]) if self.updates_by_step.size else 0

    @cached_property
    def samples(self) -> int:
        """Trained on, of all workers: without the part of each whose pushes were not applied."""
        return round(float(self._samples_by_step.sum()))

    @cached_property
    def _samples_by_step(self) -> Numbers:
        """Of each step, in the order in which they ended, the part that was applied of its worker's."""
        counts = () if self.data.outcome is None else self.data.outcome.counts
        shares = {count.worker: count.applied / count.received for count in counts if count.received}
        parts = [one.numbers("samples") * shares.get(one.header.worker, 1.0) for one in self.recorded]
        return joined(parts)[self._order]

    @property
    def samples_per_s(self) -> float | None:
        """Over the whole run."""
        return self.samples / self.wall_s if self.wall_s and self.samples else None

    @property
    def updates_per_s(self) -> float | None:
        """Over the whole run."""
        return self.updates / self.wall_s if self.wall_s and self.updates else None

    def curve(self, metric: str) -> Curve:
        """A logged metric over the run; what is no number is kept."""
        values = joined([one.metric(metric) for one in self.recorded])[self._order]
        logged = joined([_logged(one, metric) for one in self.recorded])[self._order] > 0
        return Curve(
            time_s=self.time_s[logged],
            samples=np.cumsum(self._samples_by_step)[logged],
            updates=self.updates_by_step[logged],
            values=values[logged],
        )

    @cached_property
    def loss(self) -> Curve:
        """The training loss; empty where the script logs none."""
        return self.curve("loss")

    @cached_property
    def diverged_s(self) -> float | None:
        """When a loss was no number, or infinite, for the first time; None: never."""
        bad = ~np.isfinite(self.loss.values)
        return float(self.loss.time_s[bad][0]) if bad.any() else None

    @property
    def diverged(self) -> bool:
        """A loss, a last metric, or what the last evaluation said of the metric was no finite number."""
        logged = {} if self.data.outcome is None else self.data.outcome.metrics
        last = [*logged.values(), *(value for _, value in self.evaluated[-1:])]
        return self.diverged_s is not None or not np.isfinite(last).all()

    @cached_property
    def evaluated(self) -> tuple[tuple[float, float], ...]:
        """(seconds, value) of the metric on held-out data, in order."""
        if self.data.outcome is None or self.start_unix_s is None:
            return ()
        return tuple(
            (point.unix_s - self.start_unix_s, point.values[self.metric])
            for point in self.data.outcome.evaluations
            if self.metric in point.values
        )

    @cached_property
    def smoothed(self) -> Curve:
        """The logged metric as its running mean over the last steps, two of each worker and ten at least."""
        curve = self.curve(self.metric)
        window = window_of(self.data.run.workers)
        if curve.values.size < window:
            return Curve(time_s=np.empty(0), samples=np.empty(0), updates=np.empty(0), values=np.empty(0))
        sums = np.convolve(curve.values, np.ones(window), mode="valid")
        after = slice(window - 1, None)
        return Curve(
            time_s=curve.time_s[after],
            samples=curve.samples[after],
            updates=curve.updates[after],
            values=sums / window,
        )

    @property
    def judged_by(self) -> str:
        """The source of quality: evaluations, else the script's log."""
        if self.evaluated:
            return "held-out evaluation"
        if self.smoothed.values.size:
            return "running mean of what workers logged"
        return "what the script logged last"

    @cached_property
    def target_s(self) -> float | None:
        """When the target was reached, > 0; None: it was not, or there is none."""
        if self.target is None or self.diverged:
            return None
        if self.evaluated:
            return next((at for at, value in self.evaluated if at > 0.0 and self.target.met(value)), None)
        if self.smoothed.values.size:
            met = [self.target.met(float(value)) for value in self.smoothed.values]
            return float(self.smoothed.time_s[met.index(True)]) if True in met else None
        last = self._last_logged
        return self.wall_s if last is not None and self.target.met(last) else None

    @cached_property
    def quality(self) -> float | None:
        """The metric at the end."""
        if self.evaluated:
            return self.evaluated[-1][1]
        if self._last_logged is not None:
            return self._last_logged
        return float(self.smoothed.values[-1]) if self.smoothed.values.size else None

    @property
    def _last_logged(self) -> float | None:
        if self.data.outcome is None or (self.metric == "loss" and self.loss.values.size):
            return None  # the last loss is one batch's: its running mean says more
        return self.data.outcome.metrics.get(self.metric)

    @cached_property
    def tau(self) -> Spread | None:
        """Of all pushes that were applied."""
        return spread(self.column("tau"))

    @cached_property
    def gap(self) -> Spread | None:
        """Committed clock gaps of all pushes."""
        return spread(self.column("gap"))

    def time_split(self, worker: int | None = None) -> dict[str, float]:
        """Seconds of each of `PARTS`, of one worker or of all."""
        mine = [one for one in self.recorded if worker is None or one.header.worker == worker]
        parts = {part: float(sum(np.nansum(one.numbers(f"{part}_s")) for one in mine)) for part in PARTS[:-1]}
        whole = float(sum((one.ended_unix_s - one.started_unix_s).sum() for one in mine))
        return {**parts, "other": max(0.0, whole - sum(parts.values()))}

    @property
    def workers(self) -> tuple[int, ...]:
        """That were recorded."""
        return tuple(sorted({one.header.worker for one in self.recorded}))

    def contribution(self, worker: int) -> float:
        """The part of all applied pushes that were this worker's: as servers counted, else as recorded."""
        counts = dict.fromkeys(self.workers, 0)
        for count in () if self.data.outcome is None else self.data.outcome.counts:
            counts[count.worker] = count.applied
        for one in () if any(counts.values()) else self.recorded:
            counts[one.header.worker] += int(_applied(one).sum())
        whole = sum(counts.values())
        return counts.get(worker, 0) / whole if whole else 0.0

    @property
    def dropped(self) -> int:
        """Pushes that came too late, on each partition, as the servers counted them; else as recorded."""
        counts = () if self.data.outcome is None else self.data.outcome.counts
        return sum(count.dropped for count in counts) if counts else self.total("dropped")

    def total(self, name: str) -> int:
        """Sum of a column over all workers and steps."""
        return int(self.column(name).sum())

    @property
    def worker_seconds(self) -> float:
        """From the first to the last step of each worker, summed: what the workers cost."""
        return float(sum(one.ended_unix_s[-1] - one.started_unix_s[0] for one in self.recorded))

    @property
    def cpu_s(self) -> float | None:
        """Processor time of all processes; None: it was not measured."""
        measured = {} if self.data.outcome is None else self.data.outcome.cpu_s
        return sum(measured.values()) if measured else None

    @property
    def held_s(self) -> float:
        """For how long evaluations held pushes back."""
        points = () if self.data.outcome is None else self.data.outcome.evaluations
        return sum(point.held_s for point in points)

    def recoveries(self) -> tuple[Recovery, ...]:
        """Computes what each fault did."""
        faults = () if self.data.outcome is None else self.data.outcome.faults
        return tuple(self._recovery(fault) for fault in faults if self.recorded)

    def _recovery(self, fault: Fault) -> Recovery:
        mine = joined([one.ended_unix_s for one in self.recorded if one.header.worker == fault.worker])
        others = joined([one.ended_unix_s for one in self.recorded if one.header.worker != fault.worker])
        later = mine[mine > fault.unix_s]
        until = float(later.min()) if later.size else float("inf")
        between = np.sort(others[(others > fault.unix_s) & (others < until)])
        marks = np.concatenate([[fault.unix_s], between, [until] if later.size else []])
        return Recovery(
            fault=fault,
            back_s=until - fault.unix_s if later.size else None,
            stalled_s=float(np.diff(marks).max()) if marks.size > 1 else 0.0,
        )


NDOrder = np.ndarray[tuple[int], np.dtype[np.intp]]


def window_of(workers: int) -> int:
    """The steps of the running mean by which a logged metric reaches a target."""
    return max(WINDOW_STEPS, 2 * workers)


def of_all(runs: Iterable[RunFigures], column: str) -> Spread | None:
    """A column over all pushes of several runs."""
    return spread(joined([one.column(column) for one in runs]))


def spread(values: Numbers) -> Spread | None:
    """Of the values that are numbers; None where none is."""
    known = np.sort(values[np.isfinite(values)])
    if not known.size:
        return None
    rank = int(np.ceil(0.99 * known.size)) - 1
    return Spread(mean=float(known.mean()), p99=int(known[rank]), max=int(known[-1]), count=int(known.size))


def _applied(recording: Recording) -> Numbers:
    """1 for each step of which something was applied, else 0.

    Without a tau: of one that was neither dropped nor abstained. Under `bsp:backup=B` it is not known when a
    push is acknowledged whether it will be in its step, and the baselines have no tau.
    """
    refused = (recording.numbers("dropped") > 0) | (recording.numbers("abstained") > 0)
    return np.asarray(np.isfinite(recording.numbers("tau")) | ~refused, dtype=np.float64)


def _logged(recording: Recording, metric: str) -> Numbers:
    if metric == "loss":
        return np.array([step.loss is not None for step in recording.steps], dtype=np.float64)
    return np.array([metric in step.metrics for step in recording.steps], dtype=np.float64)
