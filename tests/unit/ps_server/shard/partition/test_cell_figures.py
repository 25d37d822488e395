"""Figures of a partition are of one moment: who asks waits for the lock, whatever members do meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import torch

from ps_server.shard.service import ShardService
from ps_server.shard.shard import Shard
from ps_server.shard.table.table import ShardTable
from ps_wire.frames import frame as wire
from tests.unit.ps_server.tables import Kept, group, table_spec
from tests.until import LIMIT_S

WORKERS = 5


class Churn(dict[int, Any]):
    """Members of a partition: while somebody looks through them, one leaves on another thread, if it may."""

    def __init__(self, cell: Any) -> None:
        super().__init__(cell.machine._members)
        self._cell, self.looks = cell, 0

    def __iter__(self) -> Iterator[int]:
        for place, worker in enumerate(list(super().keys())):
            yield worker
            if place == 0 and not self._cell.lock._is_owned():
                self.looks += 1
                self._leave(WORKERS - 1)

    def _leave(self, worker: int) -> None:
        left: Future[None] = Future()

        def leave() -> None:
            with self._cell.lock:
                self.pop(worker, None)
            left.set_result(None)

        threading.Thread(target=leave, daemon=True).start()
        left.result(LIMIT_S)


def churning(shard: Shard) -> ShardTable:
    """A started table whose members come and go."""
    for worker in range(WORKERS):
        shard.members.admit(
            job="j",
            consistency_text="bsp",
            num_workers=WORKERS,
            worker=worker,
            incarnation=1,
            clocks={},
            reader=False,
        )
    spec = table_spec("SGD", group(lr=0.1), shapes=((10,),))
    shard.open_table("j", spec)
    table = shard.table("j", 0)
    for partition in table.partitions():
        payload = torch.zeros(table.plan.partition(partition).numel).numpy().tobytes()
        load = wire.Frame(kind=wire.Kind.LOAD, partition=partition, payload=payload)
        table.receive(load, Kept(), member=True)
    shard.start_table("j", 0)
    for cell in table.cells():
        cell.machine._members = Churn(cell)
    return table


def test_the_newest_clock_is_read_while_members_come_and_go():
    """Which ended the task that takes snapshots, by a KeyError."""
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
    churning(shard)
    assert shard.newest_clock("j") == 0
    assert shard.newest_clock("another") == 0


def test_status_is_read_while_members_come_and_go():
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
    churning(shard)
    (table,) = ShardService(shard, carriers=[]).figures().tables
    assert [worker.worker for worker in table.workers] == list(range(WORKERS))
    assert {(worker.min_clock, worker.max_clock) for worker in table.workers} == {(0, 0)}
