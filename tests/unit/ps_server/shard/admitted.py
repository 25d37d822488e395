"""A shard with jobs, and workers that were admitted to them."""

from __future__ import annotations

from ps_server.shard.shard import Shard


def shard_with(limit=None, *, num_shards=1, jobs=("j",), num_workers=2, consistency="bsp"):
    shard = Shard(index=0, num_shards=num_shards, memory_limit_bytes=limit)
    for job in jobs:
        for worker in range(num_workers):
            admit(shard, worker, job=job, num_workers=num_workers, consistency=consistency)
    return shard


def admit(
    shard, worker, incarnation=1, *, job="j", num_workers=2, clocks=None, reader=False, consistency="bsp"
):
    shard.members.admit(
        job=job,
        consistency_text=consistency,
        num_workers=num_workers,
        worker=worker,
        incarnation=incarnation,
        clocks=clocks or {},
        reader=reader,
    )
