"""The view of one moment as values, and the film that makes views of one status after the other.

Rates are over the last seconds, staleness is that of pushes since the look before. Pure: time is passed in,
and nothing here asks anybody or draws.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ps_lab.status.rates import Rates
from ps_lab.status.status import GONE, Job, Shard, Snapshot, Status, Worker
from ps_wire.spec.staleness import merge_counts, summarize

MOST_POINTS = 120  # of staleness that are kept
MOST_EVENTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One worker.

    Attributes:
        worker: its number.
        state: as status has it.
        clock: steps that it has taken, the fewest of a table and partition.
        gap: clocks ahead of the slowest member.
        steps_per_s: over the last seconds; None until there are two looks.
        waits_share: part of that time that it waited for weights; likewise.
        loss: the latest that it logged; None: it logs none.
        waits: for what and for whom, where it has waited for long.
        lease_left_s: None: it has no lease.
    """

    worker: int
    state: str
    clock: int
    gap: int
    steps_per_s: float | None
    waits_share: float | None
    loss: float | None
    waits: str
    lease_left_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job.

    Attributes:
        name: of it.
        consistency: as typed.
        state: as status has it.
        wanted: workers that it was made for.
        lanes: of workers that have not gone, by number.
        updates_per_s: optimizer steps on the servers.
        samples_per_s: of all workers.
        staleness: mean tau of the pushes between two looks, the newest last.
        worst: the largest tau since the job began.
        events: the last ones that the coordinator saw, the newest last.
        snapshot: the last one; None: the servers take none.
    """

    name: str
    consistency: str
    state: str
    wanted: int
    lanes: tuple[Lane, ...]
    updates_per_s: float | None
    samples_per_s: float | None
    staleness: tuple[float, ...]
    worst: int
    events: tuple[str, ...]
    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardView:
    """One server, with bytes a second in and out."""

    shard: Shard
    in_per_s: float | None
    out_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that is shown at one moment.

    Attributes:
        source: servers, or a folder of records.
        trouble: why figures are those of before; empty: they are of now.
        jobs: by name.
        shards: by number; none where records are played back.
    """

    source: str
    trouble: str
    jobs: tuple[JobView, ...]
    shards: tuple[ShardView, ...]

    def to_json(self) -> dict[str, Any]:
        """An object for a page."""
        return asdict(self)


class Film:
    """Views of one service, each made of a status and of those before it."""

    def __init__(self, source: str) -> None:
        """Nothing was seen; `source` is what people are told."""
        self._source = source
        self._rates = Rates()
        self._taus: dict[str, Mapping[int, int]] = {}
        self._points: dict[str, deque[float]] = {}
        self._last = View(source=source, trouble="", jobs=(), shards=())

    def add(self, status: Status, now_s: float) -> View:
        """The view of a status that was taken now."""
        jobs = tuple(self._job(job, now_s) for job in sorted(status.jobs, key=lambda job: job.name))
        names = {job.name for job in jobs}
        for kept in (self._taus, self._points):
            for name in [name for name in kept if name not in names]:
                del kept[name]
        shards = tuple(self._shard(shard, now_s) for shard in status.shards)
        self._rates.forget_others()
        self._last = View(source=self._source, trouble="", jobs=jobs, shards=shards)
        return self._last

    def trouble(self, why: str) -> View:
        """The last view, with why there is no newer one."""
        return View(source=self._source, trouble=why, jobs=self._last.jobs, shards=self._last.shards)

    def _job(self, job: Job, now_s: float) -> JobView:
        name = job.name
        rate = self._rates.rate
        return JobView(
            name=name,
            consistency=job.consistency,
            state=job.state,
            wanted=job.num_workers,
            lanes=tuple(self._lane(job, worker, now_s) for worker in job.workers if worker.state not in GONE),
            updates_per_s=rate((name, "updates"), job.updates, now_s),
            samples_per_s=rate((name, "samples"), sum(it.samples for it in job.workers), now_s),
            staleness=self._staleness(job),
            worst=job.tau.max,
            events=job.happened[-MOST_EVENTS:],
            snapshot=job.snapshot,
        )

    def _staleness(self, job: Job) -> tuple[float, ...]:
        counts = merge_counts(table.tau_counts for table in job.tables)
        new = Counter(counts)
        new.subtract(self._taus.get(job.name, {}))
        if min(new.values(), default=0) < 0:  # the job went back, or is another one
            new = Counter(counts)
        self._taus[job.name] = counts
        points = self._points.setdefault(job.name, deque(maxlen=MOST_POINTS))
        if new.total():
            points.append(summarize(+new).mean)
        return tuple(points)

    def _lane(self, job: Job, worker: Worker, now_s: float) -> Lane:
        parts = [
            (table, part) for table in job.tables for part in table.workers if part.worker == worker.worker
        ]
        members = [(table, part) for table, part in parts if part.member]
        clock = min((part.min_clock for _, part in members), default=worker.step)
        whose = (job.name, worker.worker)
        return Lane(
            worker=worker.worker,
            state=worker.state,
            clock=clock,
            gap=max((table.gap(part) for table, part in members), default=0),
            steps_per_s=self._rates.rate((*whose, "steps"), worker.step, now_s),
            waits_share=self._rates.rate((*whose, "waited"), worker.waited_s, now_s),
            loss=worker.metrics.get("loss"),
            waits=worker.waits,
            lease_left_s=worker.lease_left_s,
        )

    def _shard(self, shard: Shard, now_s: float) -> ShardView:
        rate = self._rates.rate
        return ShardView(
            shard=shard,
            in_per_s=rate((shard.shard, "in"), shard.bytes_in, now_s),
            out_per_s=rate((shard.shard, "out"), shard.bytes_out, now_s),
        )
