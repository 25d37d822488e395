"""A process that has some of a table's parameters has memory for these, whatever the table's size."""

from __future__ import annotations

import os

import pytest
import torch

from ps_wire.process.allocator import keep_large_blocks
from ps_wire.sockets import shared_memory
from ps_wire.sockets.shared_memory import SliceLayout
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.group.stage_traffic import StageTable
from ps_worker.memory.os_memory import can_overlay
from ps_worker.memory.table_memory import Sharing, TableMemory
from tests.pages import resident_bytes

pytestmark = pytest.mark.skipif(not can_overlay(), reason="no page map here, or no memory to be mapped")

SGD = OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),)))
MIB = 1 << 20
BLOCK_BYTES = 20 * MIB  # of a freed block that the C allocator keeps, and gives out again
SHARDS = 2


def plan_of(*stages: int, nbytes: int = 2 * MIB) -> Plan:
    """A parameter of so many bytes, and a bucket, for each stage that is named."""
    parameters = tuple(
        ParameterSpec(name=f"p{index}", shape=(nbytes // 4,), dtype="float32", group=0)
        for index in range(len(stages))
    )
    buckets = BucketOptions(bucket_bytes=nbytes, first_bucket_bytes=nbytes)
    spec = TableSpec(number=0, parameters=parameters, optimizer=SGD, buckets=buckets, stages=stages)
    return Plan(spec, SHARDS)


def lay(memory: TableMemory, plan: Plan, value: float) -> None:
    """All shards have sent their halves, in which all weights are `value`."""
    for shard in range(SHARDS):
        nbytes = SliceLayout(plan, shard).nbytes
        made = [shared_memory.create_readable(nbytes) for _ in range(2)]
        for _, shared in made:
            torch.frombuffer(shared, dtype=torch.float32).fill_(value)
        memory.lay(shard, [descriptor for descriptor, _ in made])
        for descriptor, _ in made:
            os.close(descriptor)


def flat_of(memory: TableMemory, plan: Plan, parameter: int) -> torch.Tensor:
    """The weights of the bucket that has a parameter."""
    index = next(it.index for it in plan.buckets if it.placements[0].parameter == parameter)
    return memory.weights.tensors[index]


def test_the_buckets_of_a_stage_are_those_in_which_it_holds_a_parameter() -> None:
    plan = plan_of(0, 0, 1, 2)
    table = StageTable(holders=[(0,), (0, 2), (1,), (2,)])
    mine = [table.buckets_of(rank, plan) for rank in range(3)]
    found = [sorted(plan.buckets[it].placements[0].parameter for it in of) for of in mine]
    assert found == [[0, 1], [2], [1, 3]]


def test_weights_of_shards_are_laid_where_a_stage_holds_some_and_stay_as_they_are_when_it_leaves() -> None:
    """Who leaves copies what it saw: of the other stages nothing."""
    plan = plan_of(0, 1, 1, 1)
    memory = TableMemory(
        plan, Sharing.MAPPED, held=StageTable(holders=[(0,), *[(1,)] * 3]).buckets_of(0, plan)
    )
    lay(memory, plan, 5.0)
    mine, theirs = flat_of(memory, plan, 0), [flat_of(memory, plan, index) for index in (1, 2, 3)]
    assert mine.eq(5.0).all()

    memory.own_all()

    assert [resident_bytes(it) for it in theirs] == [0, 0, 0]
    assert resident_bytes(mine) == mine.nbytes
    assert mine.eq(5.0).all()
    assert not any(it.any() for it in theirs)


def test_weights_that_travel_have_memory_where_a_stage_holds_some() -> None:
    """Also after a model has been freed, whose blocks the C allocator keeps and gives out anew, as zeros."""
    keep_large_blocks(one_arena=False)  # as a worker does
    freed = [torch.ones(BLOCK_BYTES // 4) for _ in range(4)]
    above = torch.ones(1000)  # what is free at the heap's end alone is as new
    del freed
    plan = plan_of(0, 1, 1, 1, nbytes=BLOCK_BYTES)

    memory = TableMemory(plan, Sharing.PRIVATE, held=frozenset())

    assert [resident_bytes(flat_of(memory, plan, index)) for index in range(4)] == [0, 0, 0, 0]
    assert above.numel()
