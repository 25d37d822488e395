"""How soon it is found that a script has written into mapped weights, whatever their size."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ps_wire import shared_memory
from ps_wire.plan import Plan
from ps_wire.shared_memory import Layout, SliceLayout
from ps_wire.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.memory import can_overlay
from ps_worker.table_memory import FOUND_WITHIN, Sharing, TableMemory

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


@pytest.fixture(params=[(2, 1), (300, 7), (2000, 31)], ids=["2 MiB", "300 MiB", "2000 MiB"])
def memory(request: pytest.FixtureRequest) -> Iterator[TableMemory]:
    """Laid over by all shards; its pages are never touched, so it takes none."""
    plan = plan_of(*request.param)
    made = TableMemory(plan, Sharing.MAPPED)
    for shard in range(SHARDS):
        halves = [shared_memory.create_readable(SliceLayout(plan, shard).nbytes)[0] for _ in range(2)]
        made.lay(shard, halves)
        for descriptor in halves:
            os.close(descriptor)
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
