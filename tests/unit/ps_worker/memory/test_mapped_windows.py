"""How soon it is found that a script has written into mapped weights, whatever their size."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from ps_wire.sockets import shared_memory
from ps_wire.sockets.shared_memory import Layout, SliceLayout
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.memory.os_memory import can_overlay
from ps_worker.memory.table_memory import FOUND_WITHIN, Sharing, TableMemory
from tests.until import LIMIT_S

pytestmark = pytest.mark.skipif(not can_overlay(), reason="no memory to be mapped here")

OPTIMIZER = OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),)))
SHARDS = 3


def plan_of(mib: int, tensors: int) -> Plan:
    specs = [
        ParameterSpec(
            name=f"p{place}", shape=((mib << 18) // tensors,), dtype="float32", group=0, stride=(1,)
        )
        for place in range(tensors)
    ]
    buckets = BucketOptions(bucket_bytes=25 << 20)
    return Plan(TableSpec(number=0, parameters=tuple(specs), optimizer=OPTIMIZER, buckets=buckets), SHARDS)


def lay(memory: TableMemory, shard: int) -> None:
    """A shard's halves have come."""
    nbytes = SliceLayout(memory._plan, shard).nbytes
    halves = [shared_memory.create_readable(nbytes)[0] for _ in range(2)]
    memory.lay(shard, halves)
    for descriptor in halves:
        os.close(descriptor)


@pytest.fixture(params=[(2, 1), (300, 7), (2000, 31)], ids=["2 MiB", "300 MiB", "2000 MiB"])
def memory(request: pytest.FixtureRequest) -> Iterator[TableMemory]:
    """Laid over by all shards; its pages are never touched, so it takes none."""
    plan = plan_of(*request.param)
    made = TableMemory(plan, Sharing.MAPPED)
    for shard in range(SHARDS):
        lay(made, shard)
    yield made
    made.own_all(ended=True)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("place", [0.0, 0.37, 0.999])
def test_a_page_that_a_script_writes_to_is_found_within_so_many_steps(
    memory: TableMemory, half: int, place: float
):
    nbytes = Layout(memory._plan).nbytes
    for version in range(FOUND_WITHIN):
        memory.show(version)
        assert not memory.written(version)
    memory._halves[half][int(place * nbytes)] = 1
    found = []
    for version in range(7, 7 + FOUND_WITHIN):
        memory.show(version)
        found.append(memory.written(version))
    assert any(found)
    memory.restore()
    assert not memory.written()


def test_nothing_is_laid_while_weights_come_from_other_ranks():
    """They are written where this rank saw none of a shard's when it said so."""
    memory = TableMemory(plan_of(2, 1), Sharing.MAPPED)
    lay(memory, 0)
    other = threading.Thread(target=lay, args=(memory, 1))
    with memory.held() as seen:
        other.start()
        other.join(0.2)
        assert other.is_alive()
        assert seen == {0}
    other.join(LIMIT_S)
    with memory.held() as seen:
        assert seen == {0, 1}
    memory.own_all(ended=True)


class Overtaken(dict[int, int]):
    """What is laid; while shard 0's connection looks through it, that of shard 1 lays its own, if it may."""

    def __init__(self, memory: Any) -> None:
        super().__init__()
        self._memory, self.beside = memory, Future[None]()

    def __iter__(self) -> Iterator[int]:
        laid = list(super().keys())
        if laid == [0]:
            threading.Thread(target=self._lay, daemon=True).start()
            if not self._memory._lock._is_owned():
                self.beside.result(LIMIT_S)
        return iter(laid)

    def _lay(self) -> None:
        lay(self._memory, 1)
        self.beside.set_result(None)


def test_connections_that_lay_at_one_time_are_all_looked_at():
    """The last to have looked through what is laid would write down less than there is."""
    memory = TableMemory(plan_of(2, 1), Sharing.MAPPED)
    laid = memory._laid = Overtaken(memory)
    lay(memory, 0)
    laid.beside.result(LIMIT_S)
    spans = [sum(count for _, count in memory._spans(shard)) for shard in (0, 1)]
    assert sum(count for _, count in memory._windows) == sum(spans)
    memory.own_all(ended=True)


def test_what_is_laid_after_sharing_has_ended_changes_nothing():
    """A connection that is made again while a worker leaves."""
    memory = TableMemory(plan_of(2, 1), Sharing.MAPPED)
    memory.own_all(ended=True)
    lay(memory, 0)
    assert not memory._laid
