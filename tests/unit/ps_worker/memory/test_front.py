"""Weights of many small parameters, mapped in one place for all versions: see `TableMemory.front`."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from ps_wire.sockets import shared_memory
from ps_wire.sockets.shared_memory import SliceLayout
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.memory.os_memory import can_overlay
from ps_worker.memory.table_memory import SLICE_BYTES, SMALL_BYTES, Sharing, TableMemory, stays

pytestmark = pytest.mark.skipif(not can_overlay(), reason="no memory to be mapped here")

OPTIMIZER = OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),)))


def plan_of(tensors: int, numel: int, *, shards: int = 2, bucket_bytes: int = 25 << 20) -> Plan:
    specs = [
        ParameterSpec(name=f"p{place}", shape=(numel,), dtype="float32", group=0, stride=(1,))
        for place in range(tensors)
    ]
    buckets = BucketOptions(bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes)
    return Plan(TableSpec(number=0, parameters=tuple(specs), optimizer=OPTIMIZER, buckets=buckets), shards)


PLAN = plan_of(1200, 250)


class Halves:
    """A shard's two halves, as it has them; what worker memory keeps of them outlives this."""

    def __init__(self, plan: Plan, shard: int) -> None:
        nbytes = SliceLayout(plan, shard).nbytes
        made = [shared_memory.create_readable(nbytes) for _ in range(2)]
        self.descriptors = [descriptor for descriptor, _ in made]
        self.inodes = {os.fstat(descriptor).st_ino for descriptor in self.descriptors}
        self._memory = [torch.frombuffer(memory, dtype=torch.float32) for _, memory in made]

    def write(self, version: int, value: float) -> None:
        """All weights of that version."""
        self._memory[version % 2].fill_(value)

    def close(self) -> None:
        """The descriptors, as who has sent them does."""
        for descriptor in self.descriptors:
            os.close(descriptor)


class Laid:
    """A worker's memory over that of two shards."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.memory = plan, TableMemory(plan, Sharing.MAPPED)
        self.shards = [self.lay(shard) for shard in range(2)]

    def lay(self, shard: int) -> Halves:
        made = Halves(self.plan, shard)
        self.memory.lay(shard, made.descriptors)
        made.close()
        return made

    def step(self, version: int) -> None:
        """The shards have written a version, and all of it has come."""
        for shard, halves in enumerate(self.shards):
            halves.write(version, 10 * version + shard)
        self.memory.show(version)

    def expected(self, version: int) -> list[torch.Tensor]:
        made = [torch.zeros_like(tensor) for tensor in self.memory.gradients.tensors]
        for index in range(self.plan.num_partitions):
            part = self.plan.partition(index)
            made[part.bucket][part.offset : part.offset + part.numel] = 10 * version + part.shard
        return made

    def shows(self, version: int) -> bool:
        """Whether the front, which is asked for, has all weights of that version."""
        front = self.memory.front()
        assert front is not None
        return all(map(torch.equal, front.tensors, self.expected(version)))


@pytest.fixture
def laid() -> Iterator[Laid]:
    made = Laid(PLAN)
    yield made
    made.memory.own_all(ended=True)


def opened(*halves: Halves) -> int:
    """How many descriptors of these this process has open, beside the two that each shard has."""
    inodes = set().union(*(it.inodes for it in halves))
    found = -2 * len(halves)
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder's own, or another thread's
            found += path.stat().st_ino in inodes
    return found


def test_each_version_is_seen_in_the_same_place(laid: Laid):
    """And the version before until it is asked for: whoever computes with it sees no other."""
    places = set()
    for version in range(5):
        laid.step(version)
        if version:
            before = laid.memory._front[1].tensors
            assert all(map(torch.equal, before, laid.expected(version - 1)))
        assert laid.shows(version)
        places.add(tuple(view.data_ptr() for view in laid.memory.front().views))
    assert len(places) == 1


@pytest.mark.parametrize(
    ("plan", "stay"),
    [
        (PLAN, True),
        (plan_of(1200, SMALL_BYTES // 4), False),  # they move sooner than their pages are found
        (plan_of(4, 250), False),  # little to be copied
        (plan_of(1200, 250, bucket_bytes=2 * SLICE_BYTES - 8000), False),  # many slices to be mapped
        (plan_of(1200, 250, bucket_bytes=4 * SLICE_BYTES), True),
    ],
    ids=["small", "large", "few", "many buckets", "some buckets"],
)
def test_only_where_moving_or_copying_takes_longer(plan: Plan, stay: bool):
    laid = Laid(plan)
    laid.step(1)
    assert stays(plan) is stay
    assert (laid.memory.front() is not None) is stay
    laid.memory.own_all(ended=True)


def test_parameters_move_while_a_shard_is_not_mapped(laid: Laid):
    """Its weights come as payload, in the half of their version; once it is mapped again, they come back."""
    laid.step(1)
    assert laid.shows(1)
    laid.memory.own(1)
    assert laid.memory.front() is None
    laid.shards[1] = laid.lay(1)
    laid.step(2)
    assert laid.shows(2)


def test_what_a_script_writes_is_found_in_its_step_wherever_it_is(laid: Laid):
    """With the next version it is gone: no later step could find it."""
    for version in range(1, 4):
        laid.step(version)
        assert laid.shows(version)
        assert not laid.memory.written(version)
        laid.memory.front().views[version * 300].fill_(7.0)
        assert laid.memory.written(version)
        assert laid.memory.written()
        laid.memory.restore()
        assert not laid.memory.written()
        assert all(map(torch.equal, laid.memory._front[1].tensors, laid.expected(version)))


def test_a_shard_that_another_server_has_taken_over_is_seen(laid: Laid):
    """Its halves are other memory, with the weights of both versions."""
    for version in (1, 2):
        laid.step(version)
        assert laid.shows(version)
    before = laid.shards[1]
    laid.shards[1] = laid.lay(1)
    laid.shards[1].write(1, 11)
    laid.shards[1].write(2, 21)
    before.write(2, 99)
    assert laid.shows(2)
    laid.step(3)
    assert laid.shows(3)


@pytest.mark.parametrize("ended", [False, True])
def test_weights_stay_in_their_place_at_the_end(ended: bool):
    """Of the version that came last, shown or not; whatever shards write then, unless the job has ended."""
    laid = Laid(PLAN)
    laid.step(3)
    front = laid.memory.front()
    laid.step(4)
    laid.memory.own_all(ended=ended)
    assert laid.memory.weights is laid.memory.of(4) is front
    assert not laid.memory.mapped
    assert all(map(torch.equal, front.tensors, laid.expected(4)))
    for halves in laid.shards:
        halves.write(4, 99)
    assert all(map(torch.equal, front.tensors, laid.expected(4))) is not ended
    assert laid.memory.front() is None
    front.views[0].fill_(1.0)  # it is the script's


def test_no_descriptor_stays_open():
    """Of what was laid, laid again, given up, and of memory that nobody uses any more."""
    laid = Laid(PLAN)
    first, second = laid.shards
    assert opened(first, second) == 4
    again = laid.lay(0)
    assert (opened(first), opened(again, second)) == (0, 4)
    laid.memory.own(0)
    assert opened(again, second) == 2
    laid.memory.own_all()
    assert opened(again, second) == 0
    other = Laid(PLAN)
    other.step(1)
    assert other.shows(1)
    shards = other.shards
    assert opened(*shards) == 4
    del other.memory
    gc.collect()
    assert opened(*shards) == 0
