"""Status as tables for people, readable on 80 columns: figures in narrow ones, words in a wide one."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table as RichTable

from ps_lab.status.status import Job, Status, Table, TableWorker, Worker
from ps_wire.text import one_line

SHOWN_EVENTS = 5
WHOLE = {"state", "step", "samples", "versions", "waited\ns", "heard\ns ago"}  # columns that are never broken
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def tables(status: Status) -> Iterator[RichTable]:
    """Jobs, their workers, their tables, and the servers."""
    yield jobs(status)
    for job in status.jobs:
        if job.workers:
            yield _workers(job)
            yield _places(job)
        if job.tables:
            yield _tables(job)
            yield _pushes(job)
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


def seconds_text(seconds: float) -> str:
    """With a tenth, where that says something."""
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"


def range_text(low: int, high: int) -> str:
    """One number, or two with dots between them."""
    return str(low) if low == high else f"{low}..{high}"


def jobs(status: Status) -> RichTable:
    """A row for each job: consistency model, state, members, tables, updates."""
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


def _workers(job: Job) -> RichTable:
    table = _table(
        f"workers of {one_line(job.name)}",
        ("worker", "state"),
        ("step", "samples", "clock", "gap", "max\ngap", "waited\ns", "at gate\ns", "heard\ns ago"),
    )
    for worker in job.workers:
        parts = _parts(job, worker)
        _row(
            table,
            str(worker.worker),
            worker.state,
            str(worker.step),
            str(worker.samples),
            " ".join(range_text(part.min_clock, part.max_clock) if part.member else "-" for _, part in parts),
            " ".join(str(whole.gap(part)) if part.member else "-" for whole, part in parts),
            " ".join(str(part.max_gap) for _, part in parts),
            seconds_text(worker.waited_s),
            " ".join(seconds_text(part.gate_wait_s) for _, part in parts),
            seconds_text(worker.heartbeat_age_s),
        )
    return table


def _places(job: Job) -> RichTable:
    """Where its workers are, and what they say in words: one below the other."""
    table = _table("", ("worker", "host", "data over", "what it says"), ())
    for worker in job.workers:
        carriers = sorted({name for _, part in _parts(job, worker) for name in part.carriers})
        said = [
            _ranks(job, worker),
            " ".join(f"{name}={value:.4g}" for name, value in worker.metrics.items()),
            worker.waits,
            f"no better carrier: {worker.passed_over}" if worker.passed_over else "",
        ]
        _row(
            table,
            str(worker.worker),
            f"{worker.host}, pid {worker.pid}",
            " ".join(carriers),
            "; ".join(text for text in said if text),
        )
    return table


def _ranks(job: Job, worker: Worker) -> str:
    """Who of a group is connected, and what each has pushed; nothing of a worker that is one process."""
    ranks = next((part.ranks for _, part in _parts(job, worker)), ())
    if not any(it.rank for it in ranks):
        return ""
    return "pushed by " + ", ".join(f"rank {it.rank}: {bytes_text(it.received_bytes)}" for it in ranks)


def _parts(job: Job, worker: Worker) -> list[tuple[Table, TableWorker]]:
    return [(table, part) for table in job.tables for part in table.workers if part.worker == worker.worker]


def _tables(job: Job) -> RichTable:
    table = _table(
        f"tables of {one_line(job.name)}",
        (),
        ("table", "versions", "partitions", "weights", "optimizer", "in", "out"),
    )
    for part in job.tables:
        _row(
            table,
            str(part.table),
            range_text(part.min_version, part.max_version),
            str(part.partitions),
            *(bytes_text(count) for count in (part.weight_bytes, part.optimizer_bytes)),
            *(bytes_text(count) for count in (part.bytes_in, part.bytes_out)),
        )
    return table


def _pushes(job: Job) -> RichTable:
    counters = ("applied", "dropped", "abstained", "duplicates")
    table = _table(
        f"pushes of {one_line(job.name)}, counted per partition",
        (),
        ("table", *counters, "tau mean", "p99", "max"),
    )
    for part in job.tables:
        _row(
            table,
            str(part.table),
            *(str(sum(getattr(worker, name) for worker in part.workers)) for name in counters),
            *(f"{part.tau.mean:.2f}", str(part.tau.p99), str(part.tau.max)),
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
    table = _table("events", ("job", "event"), ())
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


def _table(title: str, left: tuple[str, ...], right: tuple[str, ...]) -> RichTable:
    table = RichTable(
        title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False
    )
    for names, justify in ((left, "left"), (right, "right")):
        for name in names:
            whole = name in WHOLE
            table.add_column(name, justify=justify, overflow="fold", no_wrap=whole)  # type: ignore[arg-type]
    return table


def _row(table: RichTable, *cells: str) -> None:
    """Adds a row; what is in it was said by peers."""
    table.add_row(*map(one_line, cells))
