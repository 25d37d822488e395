"""A job's part of a snapshot, put in place of what a shard holds. It must not know how it lies in files."""

from __future__ import annotations

from collections.abc import Sequence

from ps_server.log import logger
from ps_server.shard.job import ShardJob
from ps_server.shard.shard import Shard
from ps_wire.spec import consistency
from ps_wire.spec.nonfinite import parse as parse_nonfinite
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import spec_pb2


def restore(
    shard: Shard,
    *,
    job: spec_pb2.Job,
    tables: Sequence[TableSpec],
    snapshot: str,
    incarnation: int,
    step: int,
    opening: int = 0,
) -> None:
    """Puts this shard's part of a snapshot in place of what there is of a job; nobody is in it yet.

    Args:
        shard: whose part.
        job: what it is.
        tables: by number; they have not started.
        snapshot: its name.
        incarnation: workers' incarnations up to this one are over; they are told so.
        step: of the snapshot.
        opening: number of the order.

    Raises:
        PsError: it cannot be read, or is not of these tables: what there was is still there. Or it does not
            fit, or was damaged while it was read: the job has none then.
    """
    with shard.open_part(job.name, snapshot, tables) as read:
        before = shard.end(job.name)
        if before is not None:
            before.sever()  # its workers hear why when they connect again
        shard.put(
            ShardJob(
                name=job.name,
                consistency=consistency.parse(job.consistency),
                num_workers=job.num_workers,
                nonfinite=parse_nonfinite(job.nonfinite or "error"),
                floor=incarnation,
                floor_step=step,
            )
        )
        for spec in tables:
            shard.open_table(job.name, spec, opening)
            table = shard.table(job.name, spec.number)
            table.load(read(table.plan, spec))
    logger.info("job %s: restored from %s", job.name, snapshot)
