"""Status as tables for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table as RichTable

from ps_lab.status import Job, Status, Table, TableWorker, Worker
from ps_wire.text import one_line

SHOWN_EVENTS = 5
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def tables(status: Status) -> Iterator[RichTable]:
    """Jobs, their workers, their tables, and the servers."""
    yield _jobs(status)
    if status.jobs:
        yield _workers(status)
        yield _tables(status)
    if any(job.epochs for job in status.jobs):
        yield _epochs(status)
    if any(job.happened for job in status.jobs):
        yield _happened(status)
    yield _shards(status)


def bytes_text(count: int) -> str:
    """A number of bytes with three digits and a binary unit."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def range_text(low: int, high: int) -> str:
    """One number, or two with dots between them."""
    return str(low) if low == high else f"{low}..{high}"


def _jobs(status: Status) -> RichTable:
    table = _table("jobs", ("job", "consistency", "state"), ("workers", "tables", "updates"))
    for job in status.jobs:
        members = sum(worker.state in {"joined", "running"} for worker in job.workers)
        _row(
            table,
            job.name,
            job.consistency,
            job.state,
            f"{members} of {job.num_workers}" if job.num_workers else "",
            str(len(job.tables)),
            str(job.updates),
        )
    return table


def _workers(status: Status) -> RichTable:
    table = _table(
        "workers",
        ("job", "worker", "host", "pid", "state", "data over"),
        ("step", "samples", "clock", "gap", "max gap", "waited s", "at gate s", "heard s ago"),
    )
    table.add_column("metrics")
    table.add_column("waits")
    table.add_column("no better carrier")
    for job in status.jobs:
        for worker in job.workers:
            _row(table, *_worker_cells(job, worker))
    return table


def _worker_cells(job: Job, worker: Worker) -> tuple[str, ...]:
    parts: list[tuple[Table, TableWorker]] = [
        (table, part) for table in job.tables for part in table.workers if part.worker == worker.worker
    ]
    return (
        job.name,
        str(worker.worker),
        worker.host,
        str(worker.pid),
        worker.state,
        " ".join(sorted({name for _, part in parts for name in part.carriers})),
        str(worker.step),
        str(worker.samples),
        " ".join(range_text(part.min_clock, part.max_clock) if part.member else "-" for _, part in parts),
        " ".join(str(table.gap(part)) if part.member else "-" for table, part in parts),
        " ".join(str(part.max_gap) for _, part in parts),
        f"{worker.waited_s:.1f}",
        " ".join(f"{part.gate_wait_s:.1f}" for _, part in parts),
        f"{worker.heartbeat_age_s:.1f}",
        " ".join(f"{name}={value:.4g}" for name, value in worker.metrics.items()),
        worker.waits,
        worker.passed_over,
    )


def _tables(status: Status) -> RichTable:
    table = _table(
        "tables (pushes are counted per partition)",
        ("job", "table"),
        ("versions", "partitions", "weights", "optimizer", "in", "out"),
        ("tau mean", "p99", "max"),
        ("applied", "dropped", "abstained", "duplicates"),
    )
    for job in status.jobs:
        for part in job.tables:
            _row(
                table,
                job.name,
                str(part.table),
                range_text(part.min_version, part.max_version),
                str(part.partitions),
                *(bytes_text(count) for count in (part.weight_bytes, part.optimizer_bytes)),
                *(bytes_text(count) for count in (part.bytes_in, part.bytes_out)),
                *(f"{part.tau.mean:.2f}", str(part.tau.p99), str(part.tau.max)),
                *(
                    str(sum(getattr(worker, counter) for worker in part.workers))
                    for counter in ("applied", "dropped", "abstained", "duplicates")
                ),
            )
    return table


def _epochs(status: Status) -> RichTable:
    table = _table("epochs", ("job",), ("loader", "epoch", "samples", "used", "handed on", "unused"))
    for job in status.jobs:
        for use in job.epochs:
            samples, unused = (use.samples, use.unused) if use.samples else ("?", "?")
            counts = (use.loader, use.epoch, samples, use.used, use.handed_on, unused if use.over else "")
            _row(table, job.name, *map(str, counts))
    return table


def _happened(status: Status) -> RichTable:
    table = _table("events", ("job", "event"))
    for job in status.jobs:
        for line in job.happened[-SHOWN_EVENTS:]:
            _row(table, job.name, line)
    return table


def _shards(status: Status) -> RichTable:
    table = _table("servers", ("shard", "address"), ("memory", "limit", "refused frames"))
    for shard in status.shards:
        _row(
            table,
            str(shard.shard),
            shard.address,
            bytes_text(shard.memory_bytes),
            bytes_text(shard.memory_limit_bytes) if shard.memory_limit_bytes else "none",
            str(shard.refused_frames),
        )
    return table


def _table(title: str, left: tuple[str, ...], *right: tuple[str, ...]) -> RichTable:
    table = RichTable(title=title, title_justify="left")
    for name in left:
        table.add_column(name)
    for names in right:
        for name in names:
            table.add_column(name, justify="right")
    return table


def _row(table: RichTable, *cells: str) -> None:
    """Adds a row; what is in it was said by peers."""
    table.add_row(*map(one_line, cells))
