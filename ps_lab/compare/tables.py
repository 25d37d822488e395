"""The tables of a report: of runs, of what is compared, of laws, as rows of text and numbers.

Values are not rounded: whoever shows them does that. A value that a run cannot have is None.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ps_lab.compare.comparison import Arm, Comparison
from ps_lab.compare.laws import Holds, Verdict
from ps_lab.compare.metrics import PARTS, RunFigures, of_all
from ps_lab.compare.sentences import Finding
from ps_lab.compare.statistics import Effect, interval, ratio
from ps_lab.compare.validation import LEAST_DISTANCE, MAX_DISTANCE, MAX_RATIO, Validated

Value: TypeAlias = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table.

    Attributes:
        name: of its file.
        title: as a heading.
        caption: what its columns mean.
        columns: their names, with units.
        rows: values in their order.
    """

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def csv(self) -> str:
        """With a line of names; an empty cell has no value."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([["" if value is None else value for value in row] for row in self.rows])
        return out.getvalue()


def summary(comparison: Comparison) -> Table:
    """One row per model, profile and number of workers, at the model's best learning rate."""
    return Table(
        name="summary",
        title="In numbers",
        caption="Each model at its best learning rate, means over the runs that neither failed nor "
        "diverged; time to target: geometric mean over the seeds that reached it, and how many did. tau: "
        "version staleness of the pushes, p99 and maximum over those of all runs. Worker-seconds and CPU "
        "seconds, of all processes, are what a run costs.",
        columns=(
            "model",
            "profile",
            "workers",
            "lr",
            "runs",
            "to target (s)",
            "low",
            "high",
            "reached",
            f"{comparison.metric} at the end",
            "samples/s",
            "updates/s",
            "tau mean",
            "tau p99",
            "tau max",
            "gap max",
            "at the gate (%)",
            "dropped",
            "MB up",
            "MB down",
            "worker-seconds",
            "CPU seconds",
            "evaluations held (s)",
        ),
        rows=tuple(_summary_row(entry.best) for entry in comparison.entries.values()),
    )


def runs(comparison: Comparison) -> Table:
    """One row per run of the plan."""
    figures = {one.data.run.id: one for one in comparison.figures}
    rows = []
    for data in comparison.runs:
        run = data.run
        who = (run.id, run.model, run.profile.name, run.workers, run.lr, run.seed, run.repeat)
        one = figures.get(run.id)
        rows.append((*who, *(("missing", *[None] * 13) if one is None else _run_row(one))))
    return Table(
        name="runs",
        title="All runs",
        caption="Of each run what is in the folder of its id.",
        columns=(
            *("run", "model", "profile", "workers", "lr", "seed", "repeat", "ended", "to target (s)"),
            f"{comparison.metric} at the end",
            *("wall (s)", "samples", "updates", "tau mean", "tau max", "gap max", "dropped", "abstained"),
            *("frames sent again", "evaluations held (s)", "worker-seconds"),
        ),
        rows=tuple(rows),
    )


def splits(comparison: Comparison) -> Table:
    """Each worker's time and contribution, at the model's best learning rate."""
    rows = []
    for entry in comparison.entries.values():
        for worker in sorted({worker for one in entry.best.good for worker in one.workers}):
            mine = [one for one in entry.best.good if worker in one.workers]
            seconds = [_mean(one.time_split(worker)[part] for one in mine) for part in PARTS]
            share = _mean(one.contribution(worker) for one in mine)
            rows.append((entry.model, entry.profile, entry.workers, worker, *seconds, 100 * (share or 0.0)))
    return Table(
        name="workers",
        title="Each worker's time",
        caption="Seconds of a run in each part of a step, means over the runs that neither failed nor "
        "diverged; contribution: its part of all pushes that were applied.",
        columns=(
            *("model", "profile", "workers", "worker"),
            *(f"{part} (s)" for part in PARTS),
            "contribution (%)",
        ),
        rows=tuple(rows),
    )


def staleness(comparison: Comparison) -> Table:
    """How often each tau and each gap was."""
    rows: list[tuple[Value, ...]] = []
    for entry in comparison.entries.values():
        for column in ("tau", "gap"):
            counts: Counter[int] = Counter()
            for one in entry.best.figures:
                counts.update(int(value) for value in one.column(column) if math.isfinite(value))
            rows += [
                (entry.model, entry.profile, entry.workers, column, value, counts[value])
                for value in sorted(counts)
            ]
    return Table(
        name="staleness",
        title="Version staleness and clock gaps",
        caption="How many pushes had which, over all runs at the model's best learning rate.",
        columns=("model", "profile", "workers", "of", "value", "pushes"),
        rows=tuple(rows),
    )


def rates(comparison: Comparison) -> Table:
    """One row per model and learning rate."""
    rows: list[tuple[Value, ...]] = []
    for entry in comparison.entries.values():
        for arm in entry.arms:
            time = _time(arm)
            quality = interval(list(arm.quality.values())) if arm.quality else (None, None, None)
            chosen = "best" if arm is entry.best else ""
            rows.append(
                (
                    *(entry.model, entry.profile, entry.workers, arm.lr, chosen, len(arm.figures)),
                    *(arm.missing, arm.diverged, arm.failed, len(arm.target_s)),
                    *(time.value if time else None, *quality),
                )
            )
    return Table(
        name="learning-rates",
        title="Learning rates",
        caption="Each model at each learning rate that was tried.",
        columns=(
            *("model", "profile", "workers", "lr", "chosen", "runs", "missing", "diverged", "failed"),
            *(
                "seeds that reached the target",
                "to target (s)",
                f"{comparison.metric} at the end",
                "low",
                "high",
            ),
        ),
        rows=tuple(rows),
    )


def laws(checked: Iterable[tuple[RunFigures, tuple[Verdict, ...]]]) -> Table:
    """One row per run and law."""
    return Table(
        name="laws",
        title="Laws, by run",
        caption="Laws 5, 6, 7 and 12 of the consistency models, checked on every recorded step.",
        columns=("run", "model", "law", "verdict", "checked", "what was seen"),
        rows=tuple(
            (
                one.data.run.id,
                one.data.run.model,
                verdict.law,
                str(verdict.holds),
                verdict.checked,
                verdict.text,
            )
            for one, verdicts in checked
            for verdict in verdicts
        ),
    )


def law_summary(checked: Iterable[tuple[RunFigures, tuple[Verdict, ...]]]) -> Table:
    """One row per model and law: in how many runs it held."""
    counts: dict[tuple[str, int], Counter[Holds]] = {}
    steps: Counter[tuple[str, int]] = Counter()
    said: dict[tuple[str, int], str] = {}
    for one, verdicts in checked:
        for verdict in verdicts:
            key = (one.data.run.model, verdict.law)
            counts.setdefault(key, Counter())[verdict.holds] += 1
            steps[key] += verdict.checked
            if verdict.holds is Holds.NO or key not in said:
                said[key] = verdict.text if verdict.holds is not Holds.YES else ""
    return Table(
        name="laws-summary",
        title="Laws",
        caption="5: the clock gap is bounded. 6: so is tau. 7: asp never waits at the gate. 12: every push "
        "is applied, dropped or abstained. Runs in which each held, did not, or could not be checked; "
        "checked: steps, for law 12 workers.",
        columns=("model", "law", "holds", "violated", "not checked", "checked", "remark"),
        rows=tuple(
            (
                model,
                law,
                count[Holds.YES],
                count[Holds.NO],
                count[Holds.OPEN],
                steps[model, law],
                said[model, law],
            )
            for (model, law), count in counts.items()
        ),
    )


def recoveries(comparison: Comparison) -> Table:
    """One row per fault."""
    return Table(
        name="faults",
        title="Faults",
        caption="Back: until the worker's next step had ended. Stalled: the longest time until then in "
        "which none of the others ended a step.",
        columns=("run", "model", "fault", "worker", "back (s)", "stalled (s)"),
        rows=tuple(
            (
                one.data.run.id,
                one.data.run.model,
                each.fault.kind,
                each.fault.worker,
                each.back_s,
                each.stalled_s,
            )
            for one in comparison.figures
            for each in one.recoveries()
        ),
    )


def sentences(findings: Iterable[Finding]) -> Table:
    """The findings with their numbers."""
    return Table(
        name="findings",
        title="Findings",
        caption="Ratios of times and speeds, differences of quality; low and high: the 95 % interval, with "
        "fewer than five pairs their range; p: adjusted by Holm's method over this table.",
        columns=(
            "question",
            "where",
            "rates",
            "model",
            "reference",
            "value",
            "low",
            "high",
            "pairs",
            "p",
            "adjusted p",
            "note",
        ),
        rows=tuple(
            (
                one.question,
                one.where,
                one.rates,
                one.subject,
                one.reference,
                *_effect(one.effect),
                one.p,
                one.note,
            )
            for one in findings
        ),
    )


def _effect(effect: Effect | None) -> tuple[Value, ...]:
    if effect is None:
        return (None,) * 5
    return effect.value, effect.low, effect.high, effect.pairs, effect.p


def _time(arm: Arm) -> Effect | None:
    return ratio([(time, 1.0) for time in arm.target_s.values()]) if arm.target_s else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None


def _summary_row(arm: Arm) -> tuple[Value, ...]:
    time, good = _time(arm), arm.good
    tau, gap = of_all(good, "tau"), of_all(good, "gap")
    gate = [one.time_split() for one in good if one.recorded]
    return (
        arm.model,
        arm.profile,
        arm.workers,
        arm.lr,
        len(good),
        *((time.value, time.low, time.high) if time is not None else (None, None, None)),
        f"{len(arm.target_s)} of {len(arm.seeds)}",
        _mean(arm.quality.values()),
        _mean(arm.samples_per_s.values()),
        _mean(one.updates_per_s for one in good),
        _mean(one.tau.mean for one in good if one.tau),
        None if tau is None else tau.p99,
        None if tau is None else tau.max,
        None if gap is None else gap.max,
        _mean(100 * split["gate"] / sum(split.values()) for split in gate if sum(split.values())),
        _mean(float(one.dropped) for one in good if one.recorded),
        _mean(one.total("bytes_up") / 1e6 for one in good if one.recorded),
        _mean(one.total("bytes_down") / 1e6 for one in good if one.recorded),
        _mean(one.worker_seconds for one in good if one.recorded),
        _mean(one.cpu_s for one in good),
        _mean(one.held_s for one in good),
    )


def _run_row(one: RunFigures) -> tuple[Value, ...]:
    ended = "failed" if one.data.failed else "diverged" if one.diverged else "finished"
    return (
        ended,
        one.target_s,
        one.quality,
        one.wall_s,
        one.samples,
        one.updates,
        one.tau.mean if one.tau else None,
        one.tau.max if one.tau else None,
        one.gap.max if one.gap else None,
        one.dropped,
        one.total("abstained"),
        one.total("retried"),
        one.held_s,
        one.worker_seconds,
    )


def validation(found: Iterable[Validated]) -> Table:
    """One row per simulated model: how near it came to what was measured."""
    rows = [_validation_row(one) for one in found]
    return Table(
        name="validation",
        title="Simulated beside measured",
        caption="Steps of all workers per second, simulated / measured, geometric mean with the range over "
        "seeds; distances of the distributions of tau over all seeds. A simulation holds where its "
        f"throughput is within {MAX_RATIO:.0%} and the Wasserstein distance is at most {MAX_DISTANCE:.0%} "
        f"of N - 1, or {LEAST_DISTANCE:g} updates. Where nothing was measured it is an extrapolation.",
        columns=(
            *("model", "profile", "workers", "lr", "seeds", "throughput", "low", "high"),
            *("tau: Wasserstein (updates)", "tau: total variation", "simulation"),
        ),
        rows=tuple(rows),
    )


def _validation_row(one: Validated) -> tuple[Value, ...]:
    who = (one.arm.model, one.arm.profile, one.arm.workers, one.arm.lr, len(one.ratios))
    if one.found is None:
        return (*who, None, None, None, None, None, "extrapolation")
    return (
        *who,
        one.found.ratio,
        min(one.ratios.values()),
        max(one.ratios.values()),
        one.found.wasserstein,
        one.found.total_variation,
        "holds" if one.found.holds else "does not hold",
    )
