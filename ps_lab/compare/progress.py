"""How far a run is while it goes on: as its servers say, or, of a baseline, as its workers' records do."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Protocol

from ps_lab.compare.metrics import window_of
from ps_lab.experiments.experiment import Target
from ps_lab.status.status import Job
from ps_lab.status.watch import Watch
from ps_worker.recording import columns
from ps_worker.recording.columns import RecordHeader, StepRecord

SILENT_S = 3.0  # whose record has not grown for so long is not waited for


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


class RecordsTail:
    """The steps that workers have recorded since the last look; their records lag by a second."""

    def __init__(self, folder: Path) -> None:
        """Has read nothing."""
        self._folder = folder
        self._read: dict[Path, int] = {}  # bytes of whole lines
        self._headers: dict[Path, RecordHeader] = {}

    @property
    def files(self) -> int:
        """That have a header."""
        return len(self._headers)

    def more(self) -> Iterator[tuple[Path, RecordHeader, StepRecord]]:
        """File, whose it is, and the step; by file, in order."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            lines = whole.decode("utf-8").split("\n")[:-1]
            if path not in self._headers and lines:
                self._headers[path] = columns.decode_header(lines.pop(0))
            for line in lines:
                yield path, self._headers[path], columns.decode(line)


class RecordsProgress:
    """As the records of its workers say, as far as these are written."""

    def __init__(self, folder: Path, num_workers: int) -> None:
        """Has read nothing."""
        self._tail = RecordsTail(folder)
        self._num_workers = num_workers
        self._steps: dict[Path, int] = {}
        self._samples: defaultdict[Path, int] = defaultdict(int)
        self._metrics: defaultdict[Path, dict[str, float]] = defaultdict(dict)

    @property
    def line(self) -> str:
        """See `Progress`."""
        if not self._steps:
            return f"starting: {self._tail.files} of {self._num_workers} workers are there"
        loss = _means(self._metrics.values()).get("loss")
        said = "" if loss is None else f"  loss {loss:.4g}"
        return f"step {max(self._steps.values())}{said}"

    @property
    def seen(self) -> Seen | None:
        """See `Progress`; it reads what is new."""
        for path, _, step in self._tail.more():
            self._steps[path] = step.step + 1
            self._samples[path] += step.samples
            self._metrics[path] |= step.metrics
            if step.loss is not None:
                self._metrics[path]["loss"] = step.loss
        if not self._steps:
            return None
        return Seen(
            step=max(self._steps.values()),
            samples=sum(self._samples.values()),
            metrics=_means(self._metrics.values()),
        )


class LoggedTarget:
    """Whether what workers log has reached a target, as `RunFigures.target_s` finds it in the end.

    That is by the running mean over steps of all workers, in the order in which they ended: the last value of
    one batch may be there long before. A step is looked at when all who still write have come as far.
    """

    def __init__(
        self, folder: Path, target: Target, workers: int, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Has read nothing.

        Args:
            folder: of the records.
            target: that is to be reached.
            workers: how many there are.
            now_s: a clock.
        """
        self._tail = RecordsTail(folder)
        self._target = target
        self._now_s = now_s
        self._last: dict[Path, tuple[float, float]] = {}  # when it was read, when its last step had ended
        self._waiting: list[tuple[float, float]] = []  # a heap: when the step ended, its value
        self._window: deque[float] = deque(maxlen=window_of(workers))
        self._met = False

    def met(self, logged_last: float | None) -> bool:
        """Whether it has been reached by now; it reads what is new.

        Args:
            logged_last: mean over workers of what they logged last; it counts while there are too few values
                for a running mean, but of a loss, which is one batch's.
        """
        now_s = self._now_s()
        for path, header, step in self._tail.more():
            ended_unix_s = header.unix_s + step.ended_s
            self._last[path] = now_s, ended_unix_s
            name = self._target.metric
            value = step.loss if name == "loss" else step.metrics.get(name)
            if value is not None:
                heappush(self._waiting, (ended_unix_s, value))
        writing = [ended for read_s, ended in self._last.values() if now_s - read_s < SILENT_S]
        reached_unix_s = min(writing, default=math.inf)
        while self._waiting and self._waiting[0][0] <= reached_unix_s:
            self._window.append(heappop(self._waiting)[1])
            if len(self._window) == self._window.maxlen:
                self._met |= self._target.met(sum(self._window) / len(self._window))
        if len(self._window) == self._window.maxlen:
            return self._met
        seldom = self._target.metric != "loss" and bool(self._window or self._waiting)
        return seldom and logged_last is not None and self._target.met(logged_last)


def _means(of_workers: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """By name, over those that have it."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for metrics in of_workers:
        for name, value in metrics.items():
            found[name].append(value)
    return {name: sum(values) / len(values) for name, values in sorted(found.items())}
