"""A simulation's result in a few numbers, and as a table for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from ps_lab.simulate import closed_forms
from ps_lab.simulate.engine import SimulatedRun
from ps_wire.spec.staleness import Staleness, bound, summarize

PARTS = ("compute", "push", "gate", "pull")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run in numbers.

    Attributes:
        consistency: the model.
        num_workers: that began.
        duration_s: virtual.
        steps: that ended.
        steps_per_s: of all workers.
        updates_per_s: optimizer steps of a partition.
        step_s: mean time of a worker's step.
        theory_s: what it should be by theory, of compute alone; None: no formula is known.
        tau: version staleness, per push and partition.
        tau_bound: the largest that may be; None: there is no bound.
        max_gap: the largest clock gap.
        dropped_share: of pushes.
        missed: steps that were skipped, on one partition.
        split: share of each part in the time of steps.
        metrics: of the weights at the end.
    """

    consistency: str
    num_workers: int
    duration_s: float
    steps: int
    steps_per_s: float
    updates_per_s: float
    step_s: float
    theory_s: float | None
    tau: Staleness
    tau_bound: int | None
    max_gap: int
    dropped_share: float
    missed: int
    split: dict[str, float]
    metrics: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For programs; a number that is none is null."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def summarized(outcome: SimulatedRun) -> Summary:
    """The numbers of a run."""
    setup, steps = outcome.setup, outcome.steps
    seconds = {part: float(steps.seconds(f"{part}_s").sum()) for part in PARTS}
    total_s = sum(seconds.values())
    own = setup.costs.compute_s
    mean_s = sum(sum(it) / len(it) for it in own) / len(own)
    counts = {tau + setup.delay: count for tau, count in outcome.tau.items()}
    return Summary(
        consistency=str(setup.consistency),
        num_workers=setup.num_workers,
        duration_s=outcome.duration_s,
        steps=len(steps),
        steps_per_s=outcome.steps_per_s,
        updates_per_s=max(outcome.versions) / outcome.duration_s if outcome.duration_s else math.inf,
        step_s=total_s / len(steps) if len(steps) else math.nan,
        theory_s=closed_forms.step_s(setup.consistency, setup.stragglers, setup.num_workers, mean_s),
        tau=summarize(counts),
        tau_bound=setup.delay or bound(setup.consistency, setup.num_workers),
        max_gap=int(steps.whole("gap").max()) if len(steps) else 0,
        dropped_share=outcome.dropped / outcome.received if outcome.received else 0.0,
        missed=outcome.missed // setup.num_partitions,
        split={part: it / total_s if total_s else 0.0 for part, it in seconds.items()},
        metrics=outcome.evaluations[-1].metrics if outcome.evaluations else {},
    )


def table(title: str, summaries: Sequence[Summary]) -> Table:
    """One row per run."""
    drawn = Table(
        title=title,
        caption="virtual time; step: mean of a worker's; theory: of compute alone, where a formula is known; "
        "staleness: updates between reading the weights and applying the gradient; split: of a step's time "
        "in compute, push, gate and pull",
        caption_justify="left",
    )
    drawn.add_column("model")
    for header in ("steps/s", "updates/s", "step ms", "theory ms", "staleness mean", "p99", "max", "bound"):
        drawn.add_column(header, justify="right")
    drawn.add_column("split %", justify="right")
    drawn.add_column("dropped %", justify="right")
    names = sorted({name for summary in summaries for name in summary.metrics})
    for name in names:
        drawn.add_column(name, justify="right")
    for it in summaries:
        drawn.add_row(
            it.consistency,
            f"{it.steps_per_s:.1f}",
            f"{it.updates_per_s:.1f}",
            f"{it.step_s * 1e3:.1f}",
            "" if it.theory_s is None else f"{it.theory_s * 1e3:.1f}",
            f"{it.tau.mean:.2f}",
            str(it.tau.p99),
            str(it.tau.max),
            "" if it.tau_bound is None else str(it.tau_bound),
            " ".join(f"{it.split[part] * 100:.0f}" for part in PARTS),
            f"{it.dropped_share * 100:.1f}",
            *(f"{it.metrics[name]:.4f}" if name in it.metrics else "" for name in names),
        )
    return drawn
