"""How far a run is while it goes on: as its servers say, or, of a baseline, as its workers' records do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ps_lab.status.status import Job
from ps_lab.status.watch import Watch
from ps_worker.recording import columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How far a run has come.

    Attributes:
        step: the largest of a worker.
        samples: of all workers together.
        metrics: what was logged last, mean over workers.
    """

    step: int
    samples: int
    metrics: Mapping[str, float]


class Progress(Protocol):
    """A look at a run that goes on."""

    @property
    def line(self) -> str:
        """For people."""

    @property
    def seen(self) -> Seen | None:
        """As of the last look; None: nothing was there."""


def of_job(job: Job) -> Seen:
    """As its servers have it."""
    return Seen(
        step=max((worker.step for worker in job.workers), default=0),
        samples=sum(worker.samples for worker in job.workers),
        metrics=_means(worker.metrics for worker in job.workers),
    )


class ServersProgress:
    """As the servers of a job say, while the watch is open."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    @property
    def line(self) -> str:
        """See `Progress`."""
        return self._watch.line

    @property
    def seen(self) -> Seen | None:
        """See `Progress`."""
        job = self._watch.job
        return None if job is None else of_job(job)


class RecordsProgress:
    """As the records of its workers say, as far as these are written: they lag behind by a second."""

    def __init__(self, folder: Path, num_workers: int) -> None:
        """Has read nothing."""
        self._folder = folder
        self._num_workers = num_workers
        self._read: dict[Path, int] = {}  # bytes of whole lines
        self._steps: dict[Path, int] = {}
        self._samples: dict[Path, int] = {}
        self._metrics: defaultdict[Path, dict[str, float]] = defaultdict(dict)

    @property
    def line(self) -> str:
        """See `Progress`."""
        if not self._steps:
            return f"starting: {len(self._read)} of {self._num_workers} workers are there"
        loss = _means(self._metrics.values()).get("loss")
        said = "" if loss is None else f"  loss {loss:.4g}"
        return f"step {max(self._steps.values())}{said}"

    @property
    def seen(self) -> Seen | None:
        """See `Progress`; it reads what is new."""
        for path in sorted(self._folder.glob("*.jsonl")):
            self._take(path)
        if not self._steps:
            return None
        return Seen(
            step=max(self._steps.values()),
            samples=sum(self._samples.values()),
            metrics=_means(self._metrics.values()),
        )

    def _take(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.decode("utf-8").splitlines()
        if path not in self._read and lines:
            del lines[0]  # the header
        if whole:
            self._read[path] = self._read.get(path, 0) + len(whole)
        for line in lines:
            step = columns.decode(line)
            self._steps[path] = step.step + 1
            self._samples[path] = self._samples.get(path, 0) + step.samples
            self._metrics[path] |= step.metrics
            if step.loss is not None:
                self._metrics[path]["loss"] = step.loss


def _means(of_workers: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """By name, over those that have it."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for metrics in of_workers:
        for name, value in metrics.items():
            found[name].append(value)
    return {name: sum(values) / len(values) for name, values in sorted(found.items())}
