"""A job's progress in one line, from one look at the servers after the other. Pure: time is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from ps_lab.status.rates import Rates
from ps_lab.status.status import Job
from ps_wire.spec.staleness import Staleness

FIRST_METRICS = ("loss",)  # shown before the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A job at one moment.

    Attributes:
        first_step: of the slowest worker.
        last_step: of the fastest.
        samples_per_s: all workers together, over the last seconds; None until there are two looks.
        metrics: name and mean over workers, loss first.
        tau: since the job's start.
    """

    first_step: int
    last_step: int
    samples_per_s: float | None
    metrics: tuple[tuple[str, float], ...]
    tau: Staleness

    def __str__(self) -> str:
        steps = f"{self.first_step}"
        if self.last_step > self.first_step:
            steps += f"..{self.last_step}"
        parts = [f"step {steps}"]
        if self.samples_per_s is not None:
            parts.append(f"{self.samples_per_s:,.0f} samples/s")
        parts += [f"{name} {value:.4g}" for name, value in self.metrics]
        parts.append(f"staleness mean {self.tau.mean:.1f} max {self.tau.max}")
        return "  ".join(parts)


class Meter:
    """Turns what the servers say into progress; keeps the last seconds for the rate."""

    def __init__(self) -> None:
        self._rates = Rates()

    def read(self, job: Job, now_s: float) -> Progress | None:
        """The progress of a job as seen at `now_s`; None before its first step."""
        steps = [worker.step for worker in job.workers]
        if not any(steps):
            return None
        samples_per_s = self._rates.rate("samples", sum(worker.samples for worker in job.workers), now_s)
        names = {name for worker in job.workers for name in worker.metrics}
        ordered = sorted(names, key=lambda name: (name not in FIRST_METRICS, name))
        means = ((name, job.metric(name)) for name in ordered)
        return Progress(
            first_step=min(steps),
            last_step=max(steps),
            samples_per_s=samples_per_s,
            metrics=tuple((name, mean) for name, mean in means if mean is not None),
            tau=job.tau,
        )
