"""Gradients that lie on devices are reduced there to their owners, and of weights all devices get all.

The devices are the host here, and gloo makes the calls that NCCL makes between GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ps_wire.errors import GroupBroken
from ps_wire.process.ranks import Ranks
from ps_wire.spec.plan import Partition, Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.group import group
from ps_worker.group.devices.collectives import DeviceCalls, DeviceCollectives, rounds
from ps_worker.group.ending import Ending
from ps_worker.group.gradient_reduce import GradientReduce, OnDevice
from ps_worker.group.rendezvous import Met
from ps_worker.memory.device_memory import DeviceMemory
from ps_worker.memory.flat import FlatBuckets
from ps_worker.memory.staging import Stagings
from tests.unit.ps_worker.group.wires import Town, town


@pytest.fixture(autouse=True)
def over_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


HOST = torch.device("cpu")
CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # what is promised of NCCL


def plan_of(dtype: str = "float32") -> Plan:
    """Buckets whose partitions are of one size, but for the last: some rounds are whole, others are not."""
    spec = TableSpec(
        number=0,
        parameters=tuple(
            ParameterSpec(name=f"p{index}", shape=(count,), dtype=dtype, group=0, stride=(1,))
            for index, count in enumerate((5000, 3000, 4096))
        ),
        optimizer=OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),))),
        buckets=BucketOptions(bucket_bytes=32 << 10, partition_bytes=4 << 10),
    )
    return Plan(spec, 2)


class Devices:
    """One table on all ranks of a group, each with a device of its own.

    Attributes:
        host: flat gradients on the host, by rank; NaN, where nothing was copied to.
        weights: the same of weights.
        memories: of devices.
    """

    def __init__(self, group: Town, plan: Plan, device: torch.device = HOST) -> None:
        ranks = range(len(group.channels))
        store = dist.HashStore()
        self.plan = plan
        self.partitions = [plan.partition(index) for index in range(plan.num_partitions)]
        self.host = [unwritten(plan) for _ in ranks]
        self.weights = [unwritten(plan) for _ in ranks]
        self.memories = [DeviceMemory.of(plan, device, Stagings([])) for _ in ranks]
        pieces = [len(plan.placements(it)) for it in self.partitions]
        self.all = [[[True] * pieces[it.index] for it in of] for of in self.of_bucket()]
        self.reduces: list[Any] = [None for _ in ranks]

        def make(rank: int) -> None:
            self.reduces[rank] = GradientReduce(
                group.channels[rank],
                Ending(lambda: False),
                0,
                self.host[rank].tensors,
                self.partitions,
                pieces,
                device=OnDevice(calls_of(store, rank, len(ranks)), self.memories[rank]),
            )

        assert group.run(make) == [None for _ in ranks]

    def of_bucket(self) -> list[list[Partition]]:
        return [[it for it in self.partitions if it.bucket == of.index] for of in self.plan.buckets]

    def push(self, rank: int) -> list[Any]:
        for flat, mine in zip(self.memories[rank].gradients.tensors, given(self.plan, rank), strict=True):
            flat.copy_(mine)
        reduce = self.reduces[rank]
        ready = [
            reduce.push(bucket, step=0, weight=1.0, hyper=1, present=there)
            for bucket, there in enumerate(self.all)
        ]
        return [it for of in (*ready, reduce.rest()) for it in of]

    def check_reduced(self, ranks: Sequence[int]) -> None:
        """Each rank's host has the mean of these in the partitions that it owns, and nothing else."""
        terms = [given(self.plan, rank) for rank in ranks]
        owned = [index for reduce in self.reduces for index in reduce.owned]
        assert sorted(owned) == list(range(len(self.partitions)))
        for reduce, host in zip(self.reduces, self.host, strict=True):
            for it in self.partitions:
                place = slice(it.offset, it.offset + it.numel)
                found = host.partition(it)
                if it.index not in reduce.owned:
                    assert found.isnan().all()
                    continue
                mean = sum(of[it.bucket][place] for of in terms) / len(terms)
                torch.testing.assert_close(found, mean, **CLOSE)


def unwritten(plan: Plan) -> FlatBuckets:
    made = FlatBuckets(plan)
    for flat in made.tensors:
        flat.fill_(float("nan"))
    return made


def given(plan: Plan, rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(it.numel, generator=generator).to(getattr(torch, it.dtype)) for it in plan.buckets]


def calls_of(store: Any, rank: int, size: int) -> DeviceCalls:
    made: Any = dist.ProcessGroupGloo(store, rank, size)
    return made


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_of_the_mean_what_a_rank_owns_comes_to_its_host_and_nothing_else(size: int, dtype: str) -> None:
    with town(size) as ranks:
        table = Devices(ranks, plan_of(dtype))

        found = ranks.run(table.push)

    assert not any(isinstance(it, Exception) for it in found), found
    table.check_reduced(range(size))
    for rank, memory in enumerate(table.memories):  # a script may look at them: they are its own
        assert all(map(torch.equal, memory.gradients.tensors, given(table.plan, rank)))


@pytest.mark.parametrize("idle", [0, 2])
def test_a_rank_without_a_gradient_takes_part_and_is_left_out_of_the_mean(idle: int) -> None:
    with town(3) as ranks:
        table = Devices(ranks, plan_of())
        for flat in table.memories[idle].gradients.tensors:
            flat.fill_(float("inf"))  # of another step

        ranks.run(lambda rank: table.reduces[rank].abstain(0) if rank == idle else table.push(rank))

    table.check_reduced([rank for rank in range(3) if rank != idle])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_weights_that_each_rank_has_pulled_come_to_all_devices_to_the_bit(size: int, dtype: str) -> None:
    def script(rank: int) -> Any:
        weights, reduce = table.weights[rank], table.reduces[rank]
        for index in reduce.owned:
            it = table.partitions[index]
            weights.partition(it).copy_(wanted[it.bucket][it.offset : it.offset + it.numel])
        known = [7 if index in reduce.owned else 0 for index in range(len(table.partitions))]
        return reduce.spread(1, lambda: known, lambda _: weights.tensors, frozenset).newest

    with town(size) as ranks:
        table = Devices(ranks, plan_of(dtype))
        wanted = given(table.plan, 99)

        found = ranks.run(script)

    assert found == [[7] * len(table.partitions)] * size
    for memory in table.memories:
        assert all(map(torch.equal, memory.weights.tensors, wanted))
    for weights, reduce in zip(table.weights, table.reduces, strict=True):
        others = [it for it in table.partitions if it.index not in reduce.owned]
        assert all(weights.partition(it).isnan().all() for it in others)


def test_most_of_a_bucket_goes_in_rounds_in_which_each_rank_owns_one_part() -> None:
    partitions = [
        Partition(index=index, bucket=0, shard=0, offset=8 * index, numel=8 if index < 5 else 3)
        for index in range(6)
    ]

    made = rounds(partitions, [1, 0, 1, 0, 0, 1], 2)

    assert [[it.index for it in of] for of in made] == [[1, 0], [3, 2], [4], [5]]


class Broken:
    """Calls that fail."""

    def __getattr__(self, _name: str) -> Any:
        raise RuntimeError("NCCL error: remote process exited\nsecond line")


def test_a_collective_that_fails_ends_the_group_and_says_why() -> None:
    with town(2) as ranks:
        plan = plan_of()
        memory = DeviceMemory.of(plan, HOST, Stagings([]))
        partitions = [plan.partition(index) for index in range(plan.num_partitions)]
        broken: Any = Broken()
        host = FlatBuckets(plan).tensors
        made = DeviceCollectives(ranks.channels[0], broken, memory, host, partitions, [0 for _ in partitions])

        with pytest.raises(GroupBroken, match=r"collective of rank 0 has failed: NCCL error: remote"):
            made.reduce(0, mine=True, count=2)
        assert ranks.said


@pytest.mark.gpu
def test_nccl_makes_these_calls() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    gpu = torch.device("cuda", 0)
    with town(1) as ranks:
        plan = plan_of()
        store: Any = dist.HashStore()
        calls = group._nccl(Met(hosts=("here",), machines=("m",), store=store), Ranks())
        host = unwritten(plan)
        memory = DeviceMemory.of(plan, gpu, Stagings(host.tensors))
        partitions = [plan.partition(index) for index in range(plan.num_partitions)]
        made = DeviceCollectives(
            ranks.channels[0], calls, memory, host.tensors, partitions, [0 for _ in partitions]
        )
        wanted = given(plan, 3)
        for flat, it in zip(memory.gradients.tensors, wanted, strict=True):
            flat.copy_(it)

        for bucket in range(len(plan.buckets)):
            made.reduce(bucket, mine=True, count=1)
        made.gather(host.tensors)

        assert all(map(torch.equal, host.tensors, wanted))
        assert all(torch.equal(it.cpu(), of) for it, of in zip(memory.weights.tensors, wanted, strict=True))
        calls.abort()
