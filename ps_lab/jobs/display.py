"""A job that is dropped, as people see it."""

from __future__ import annotations

from collections.abc import Iterator

from ps_lab.status.report import bytes_text
from ps_lab.status.status import Job
from ps_wire.text import one_line
from ps_wire.v1 import coordinator_pb2 as pb

SHOWN_WORKERS = 16


def held_text(job: Job) -> str:
    """Says what the servers hold of it."""
    held = sum(table.weight_bytes + table.optimizer_bytes for table in job.tables)
    tables = f"{len(job.tables)} table{'s' * (len(job.tables) != 1)}"
    return f"{job.state}, {tables}, {bytes_text(held)} of weights and optimizer state"


def dropped_lines(job: str, held: str, dropped: pb.DropReply) -> Iterator[str]:
    """Says what became of it; `held` is what was known before."""
    yield f"job {job} is dropped: it was {held or one_line(dropped.state)}"
    for worker in dropped.workers[:SHOWN_WORKERS]:
        yield f"told, and ends: {one_line(worker)}"
    if len(dropped.workers) > SHOWN_WORKERS:
        yield f"told, and end: {len(dropped.workers) - SHOWN_WORKERS} more workers"
    if dropped.readers:
        yield f"told, and end: {dropped.readers} readers"
    if dropped.snapshots:
        yield (
            f"its {dropped.snapshots} snapshots stay in {one_line(dropped.where)}; the job does not go on "
            "from them, unless ps-lab snapshot restore brings one back"
        )
