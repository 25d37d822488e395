"""What a look at one shard costs: processor time of a status answer and of a scrape of metrics.

    python benchmarks/scrape_cost.py

A shard with so many workers and partitions, all of whose ledgers, clocks and histograms have entries, is
asked again and again in this process; nothing is sent. Prints one JSON line: for each size, milliseconds of
processor time, the best of several. Targets: 10 ms for 64 workers and 94 partitions, 100 ms for 1,000.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable

import torch

from ps_server.process.server_metrics import ServerMetrics
from ps_server.shard.partition.machine import Contribution
from ps_server.shard.service import ShardService
from ps_server.shard.shard import Shard
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec

SIZES = ((64, 94), (1000, 13), (1000, 94))  # workers, partitions
STEPS = 3
TIMES = 10
PARTITION_BYTES = 4096


def shard_of(workers: int, partitions: int) -> Shard:
    """A shard with one table, on which every worker has pushed some steps."""
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
    for worker in range(workers):
        shard.members.admit(
            job="j",
            consistency_text="asp",
            num_workers=workers,
            worker=worker,
            incarnation=1,
            clocks={},
            reader=False,
        )
    size = partitions * PARTITION_BYTES
    spec = TableSpec(
        number=0,
        parameters=(ParameterSpec(name="w", shape=(size // 4,), dtype="float32", group=0),),
        optimizer=OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),))),
        buckets=BucketOptions(
            bucket_bytes=size, first_bucket_bytes=PARTITION_BYTES, partition_bytes=PARTITION_BYTES
        ),
    )
    shard.open_table("j", spec)
    table = shard.table("j", 0)
    for cell in table.cells():
        cell.set_weights(torch.zeros_like(cell.values.now), (0, 1))
    for step in range(STEPS):
        for cell in table.cells():
            for worker in range(workers):
                version = max(cell.machine.version - worker // 2, 0)
                it = Contribution(worker=worker, incarnation=1, step=step, version=version, payload=step)
                cell.machine.push(it, 0.0)
    return shard


def cost_ms(look: Callable[[], object]) -> float:
    """Processor time of one look."""
    look()
    found = []
    for _ in range(TIMES):
        begun_s = time.thread_time()
        look()
        found.append(time.thread_time() - begun_s)
    return round(1e3 * min(found), 2)


def main() -> None:
    found = {}
    loop = asyncio.new_event_loop()
    for workers, partitions in SIZES:
        shard = shard_of(workers, partitions)
        gc.collect()
        status = ShardService(shard, carriers=[])
        metrics = ServerMetrics(shard, None, loop, ready=lambda: True, snapshot_every_s=0.0)
        found[f"{workers} x {partitions}"] = {
            "status_ms": cost_ms(status.figures),
            "scrape_ms": cost_ms(metrics.text),
        }
    loop.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
