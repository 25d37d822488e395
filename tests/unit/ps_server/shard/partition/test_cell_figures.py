"""Figures of a partition are of one moment: who asks waits for the lock, whatever members do meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import torch

from ps_server.shard.partition.machine import Contribution, Pull
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


def started(shard: Shard) -> ShardTable:
    """A table that has started, with its members."""
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
    return table


def churning(shard: Shard) -> ShardTable:
    """As `started`; its members come and go."""
    table = started(shard)
    for cell in table.cells():
        cell.machine._members = Churn(cell)
    return table


def test_the_wait_at_the_gate_ends_when_the_step_is_closed(monkeypatch):
    """Long after its last push, on another thread: pulls that came meanwhile have waited, too."""
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
    cell = started(shard).cell(0)
    closes: list[Callable[[], None]] = []
    monkeypatch.setattr(cell._closing, "_later", closes.append)
    for worker in range(WORKERS):
        pushed = Contribution(worker=worker, incarnation=1, step=0, payload=None)
        cell.push(pushed, Kept(), 10.0)
    cell.pull(Pull(worker=0, incarnation=1, clock=1, asked_s=12.0), Kept())
    monkeypatch.setattr(time, "monotonic", lambda: 15.0)
    for close in closes:
        close()
    assert cell.ledger(0).gate_wait_s == 3.0


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
