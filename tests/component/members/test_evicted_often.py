"""Three workers of which one or another is evicted all the time: nothing is lost, nothing counts twice."""

from __future__ import annotations

import random
import threading

import pytest
import torch

import ps_worker as ps
from tests.component.service import Cluster, fresh_name, together
from tests.until import LIMIT_S

EVICTIONS = 12


@pytest.mark.parametrize(
    ("consistency", "clip"), [("bsp", None), ("bsp", 1e6), ("ssp:1", None), ("asp", None)]
)
def test_every_push_is_applied_once_or_counted_as_dropped(cluster: Cluster, consistency, clip):
    """Every push adds one: each partition's weights are its pushes that were applied, of bsp its steps."""
    job = fresh_name()
    over = threading.Event()
    turn = threading.Semaphore(0)

    def body(rank):
        with ps.connect(
            servers=cluster.servers, job=job, num_workers=3, worker=rank, consistency=consistency
        ) as worker:
            table = worker.table(
                {"w": torch.zeros(20_000)},
                optimizer=ps.SGD(lr=1.0),
                clip_grad_norm=clip,
                buckets=ps.BucketOptions(partition_bytes=16_384),
            )
            while not over.is_set():
                table.push({"w": torch.full((20_000,), -1.0)})
                table.pull().result(LIMIT_S)
                turn.release()
            worker.finish()
            return table.pull().result(LIMIT_S).values["w"]

    def evicts():
        rng = random.Random(0)
        for _ in range(EVICTIONS):
            for _ in range(rng.randrange(3, 20)):
                assert turn.acquire(timeout=LIMIT_S)
            cluster.evict(job, rng.randrange(3))
        over.set()

    *finals, _ = together([*(lambda rank=rank: body(rank) for rank in range(3)), evicts], LIMIT_S)
    assert all(torch.equal(final, finals[0]) for final in finals)
    for server in cluster.shards:
        for cell in server.shard.table(job, 0).cells():
            check(cell, consistency)


def check(cell, consistency: str) -> None:
    machine, ledgers = cell.machine, cell.machine.ledgers.values()
    assert all(item.received == item.applied + item.dropped + item.abstained for item in ledgers)
    (value,) = {it for it in cell.values.now.tolist() if it} or {0.0}  # what is behind the parameter stays 0
    if consistency == "bsp":  # a step may have closed with nothing to apply
        assert machine.version - EVICTIONS <= value <= machine.version
    else:
        assert value == machine.version == sum(item.applied for item in ledgers)
