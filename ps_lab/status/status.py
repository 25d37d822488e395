"""The status of a service as values: jobs, workers, tables, shards.

Put together from the coordinator's answer and one answer per shard: versions and clocks are the extremes over
shards, counts and bytes their sums, waits the largest, since shards are waited for side by side.
Nothing here asks anybody; `observer` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ps_wire.spec.epoch_use import EpochUse
from ps_wire.spec.staleness import Staleness, merge_counts, summarize


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One server.

    Attributes:
        shard: its number.
        address: of its control port.
        memory_bytes: that tables take, as it counts against the limit.
        memory_limit_bytes: 0: there is none.
        refused_frames: and connections and calls, since the process began.
        connections: data connections of workers and readers.
        queued_bytes: that wait until workers read them.
        bytes_in: pushed by workers, to all its tables.
        bytes_out: pulled by workers.
        min_version: of its partitions, of all jobs that are shown.
        max_version: of its partitions.
    """

    shard: int
    address: str
    memory_bytes: int
    memory_limit_bytes: int
    refused_frames: int
    connections: int = 0
    queued_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    min_version: int = 0
    max_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The last complete snapshot of a job that the coordinator has seen.

    Attributes:
        age_s: since it was complete; before the first one, since the coordinator first saw the job.
        step: of it; None: there was none.
        duration_s: that it took.
        nbytes: its size.
    """

    age_s: float
    step: int | None
    duration_s: float
    nbytes: int


GONE = frozenset({"left", "lost"})  # states of a worker that is no member any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker of a job, as the coordinator knows it.

    Attributes:
        worker: its number.
        incarnation: grows at each join.
        host: where it runs.
        pid: its process there.
        state: joined, running, finished, left or lost.
        step: of its first table, as of the last heartbeat.
        samples: that its loader handed out.
        waited_s: in step(), for weights.
        heartbeat_age_s: since the coordinator heard of it.
        lease_left_s: until it is evicted if nothing more is heard of it; None: never.
        metrics: the latest of each `worker.log(...)`.
        waits: for what, and for whom, if it has waited for long; else empty.
        passed_over: better carriers than those that carry its data, and why not they; empty: none is better.
    """

    worker: int
    incarnation: int
    host: str
    pid: int
    state: str
    step: int
    samples: int
    waited_s: float
    heartbeat_age_s: float
    lease_left_s: float | None
    metrics: Mapping[str, float]
    waits: str
    passed_over: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConnections:
    """The live data connections of one rank of a worker, over all shards; all tables share them.

    Attributes:
        rank: in its group; 0 of a worker that is one process.
        received_bytes: payload that has come from it.
        sent_bytes: payload that was sent to it.
    """

    rank: int
    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWorker:
    """One worker's pushes and pulls of one table, over all shards.

    Attributes:
        worker: its number.
        member: whether gates still count it.
        min_clock: the smallest of its clocks on the partitions.
        max_clock: the largest.
        max_gap: the largest clock gap that one of its pushes made.
        received: pushes and abstentions per partition, without duplicates; the next five likewise.
        applied: to the weights.
        dropped: too late.
        missed: not pushed, for others had gone on without it.
        abstained: with nothing to apply.
        duplicates: acknowledged again, not applied.
        gate_wait_s: of its pulls, at the gate.
        carriers: of its data connections, each name once; none where it has no connection.
        ranks: that have connections, by rank.
    """

    worker: int
    member: bool
    min_clock: int
    max_clock: int
    max_gap: int
    received: int
    applied: int
    dropped: int
    missed: int
    abstained: int
    duplicates: int
    gate_wait_s: float
    carriers: tuple[str, ...]
    ranks: tuple[RankConnections, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of a job, over all shards.

    Attributes:
        table: its number.
        partitions: over all shards.
        min_version: of its partitions.
        max_version: of its partitions.
        bytes_in: pushed by workers.
        bytes_out: pulled by workers.
        weight_bytes: held.
        optimizer_bytes: held.
        hyper_mismatches: steps in which workers brought different hyper-parameters.
        mixed_steps: pushes of evicted workers that some partitions had taken and others not.
        tau_counts: version staleness -> pushes applied with it, per partition.
        workers: by number.
    """

    table: int
    partitions: int
    min_version: int
    max_version: int
    bytes_in: int
    bytes_out: int
    weight_bytes: int
    optimizer_bytes: int
    hyper_mismatches: int
    mixed_steps: int
    tau_counts: Mapping[int, int]
    workers: tuple[TableWorker, ...]

    @property
    def tau(self) -> Staleness:
        """Its version staleness in short."""
        return summarize(self.tau_counts)

    def gap(self, worker: TableWorker) -> int:
        """How far a member is ahead of the slowest one now, in clocks; 0 for one that is no member."""
        slowest = min((other.min_clock for other in self.workers if other.member), default=0)
        return worker.min_clock - slowest if worker.member else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job: waiting, running, suspended or ended.

    Or asleep: the servers were started again, have a snapshot of it, and nobody has come to it since; or
    going back to that snapshot. Of such a job only its name is known.

    Attributes:
        name: of it.
        consistency: as typed.
        num_workers: at most so many at once.
        min_workers: of a range, so many start it; 0: all do.
        nonfinite: what becomes of gradients with NaN or infinity.
        state: see above.
        epoch: of its membership; grows with every change.
        events: what happened, kind -> how often; the kinds are in ps_server/events.py.
        happened: the last of them that the coordinator saw, as in its log, with their times.
        epochs: that began last, of loaders whose batches are trained on.
        workers: by number.
        tables: by number.
        snapshot: the last one; None: the servers take none.
    """

    name: str
    consistency: str
    num_workers: int
    min_workers: int
    nonfinite: str
    state: str
    epoch: int
    events: Mapping[str, int]
    happened: tuple[str, ...]
    epochs: tuple[EpochUse, ...]
    workers: tuple[Worker, ...]
    tables: tuple[Table, ...]
    snapshot: Snapshot | None = None

    @property
    def tau(self) -> Staleness:
        """Version staleness over all its tables."""
        return summarize(merge_counts(table.tau_counts for table in self.tables))

    @property
    def updates(self) -> int:
        """Optimizer steps taken on the servers: the newest version, summed over tables."""
        return sum(table.max_version for table in self.tables)

    @property
    def has_live_workers(self) -> bool:
        """Whether anybody is in it who has neither left nor was lost."""
        return any(worker.state not in {"left", "lost"} for worker in self.workers)

    def metric(self, name: str) -> float | None:
        """The mean of a metric over the workers that logged it; None if nobody did."""
        values = [worker.metrics[name] for worker in self.workers if name in worker.metrics]
        return sum(values) / len(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """All that a set of servers says at one moment."""

    shards: tuple[Shard, ...]
    jobs: tuple[Job, ...]

    def job(self, name: str) -> Job | None:
        """The job of that name."""
        return next((job for job in self.jobs if job.name == name), None)

    def only(self, name: str) -> Status:
        """The same, of this job alone."""
        return replace(self, jobs=tuple(job for job in self.jobs if job.name == name))

    def to_json(self) -> dict[str, Any]:
        """An object for programs; each table also has its `tau` in short, each of its workers its `gap`."""
        data = asdict(self)
        for job, job_data in zip(self.jobs, data["jobs"], strict=True):
            for table, table_data in zip(job.tables, job_data["tables"], strict=True):
                table_data["tau"] = asdict(table.tau)
                for worker, worker_data in zip(table.workers, table_data["workers"], strict=True):
                    worker_data["gap"] = table.gap(worker)
        return data


def merge_tables(parts: Iterable[Table]) -> Table:
    """One table from what each shard says of its part of it; a shard without a part says nothing."""
    everyone = tuple(parts)
    tables = tuple(table for table in everyone if table.partitions) or everyone
    by_number: dict[int, list[TableWorker]] = {}
    for table in tables:
        for worker in table.workers:
            by_number.setdefault(worker.worker, []).append(worker)
    return Table(
        table=tables[0].table,
        partitions=sum(table.partitions for table in tables),
        min_version=min(table.min_version for table in tables),
        max_version=max(table.max_version for table in tables),
        bytes_in=sum(table.bytes_in for table in tables),
        bytes_out=sum(table.bytes_out for table in tables),
        weight_bytes=sum(table.weight_bytes for table in tables),
        optimizer_bytes=sum(table.optimizer_bytes for table in tables),
        hyper_mismatches=sum(table.hyper_mismatches for table in tables),
        mixed_steps=sum(table.mixed_steps for table in tables),
        tau_counts=merge_counts(table.tau_counts for table in tables),
        workers=tuple(_merge_workers(by_number[number]) for number in sorted(by_number)),
    )


def _merge_workers(parts: list[TableWorker]) -> TableWorker:
    return TableWorker(
        worker=parts[0].worker,
        member=any(part.member for part in parts),
        min_clock=min(part.min_clock for part in parts),
        max_clock=max(part.max_clock for part in parts),
        max_gap=max(part.max_gap for part in parts),
        received=sum(part.received for part in parts),
        applied=sum(part.applied for part in parts),
        dropped=sum(part.dropped for part in parts),
        missed=sum(part.missed for part in parts),
        abstained=sum(part.abstained for part in parts),
        duplicates=sum(part.duplicates for part in parts),
        gate_wait_s=max(part.gate_wait_s for part in parts),
        carriers=tuple(sorted({name for part in parts for name in part.carriers})),
        ranks=_merge_ranks([it for part in parts for it in part.ranks]),
    )


def _merge_ranks(parts: list[RankConnections]) -> tuple[RankConnections, ...]:
    return tuple(
        RankConnections(
            rank=rank,
            received_bytes=sum(it.received_bytes for it in parts if it.rank == rank),
            sent_bytes=sum(it.sent_bytes for it in parts if it.rank == rank),
        )
        for rank in sorted({it.rank for it in parts})
    )
