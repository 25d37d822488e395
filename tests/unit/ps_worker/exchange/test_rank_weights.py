"""Weights reach all ranks of a group by bucket, first layers first, and are waited for in part."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.exchange.in_flight import InFlight
from ps_worker.exchange.rank_weights import RankWeights
from ps_worker.group.arrived_weights import Versions
from ps_worker.group.beside import Beside
from ps_worker.memory.table_memory import Sharing, TableMemory
from tests.unit.ps_worker.group.wires import town
from tests.until import LIMIT_S

BUCKETS = 3  # of one partition each
CLOCK = 7


class Ranks:
    """The ranks of a group, of which this one owns partition 1: each bucket comes when it is let in."""

    owned = (1,)

    def __init__(self, beside: Beside, memory: TableMemory, *, by_bucket: bool) -> None:
        self.beside = beside
        self.memory = memory  # of this rank
        self.by_bucket = by_bucket
        self.let_in = [threading.Event() for _ in range(BUCKETS)]
        self.came: list[int | None] = []
        self.places: list[Sequence[torch.Tensor]] = []  # where weights of others are written

    def spread(
        self,
        step: int,
        arrive: Callable[[], Sequence[int]],
        weights: Callable[[int], Sequence[torch.Tensor]],
        mapped: Callable[[], Collection[int]],
        bucket: int | None = None,
    ) -> Versions:
        arrive()
        assert len(weights(step)) == BUCKETS
        self.places.append(weights(step))
        assert not mapped()
        if bucket is not None:
            assert self.let_in[bucket].wait(LIMIT_S)
        self.came.append(bucket)
        count = BUCKETS if bucket is None else 1
        return Versions(newest=[step] * count, clock=step, spread=0)


@contextmanager
def weights_of(*, by_bucket: bool) -> Iterator[tuple[Ranks, RankWeights, list[int], InFlight]]:
    parameters = tuple(ParameterSpec(name=name, shape=(64,)) for name in "abc")
    each = BucketOptions(bucket_bytes=0, first_bucket_bytes=0)
    optimizer = OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((),)))
    plan = Plan(TableSpec(number=0, parameters=parameters, optimizer=optimizer, buckets=each), 1)
    memory, arrived = TableMemory(plan, Sharing.PRIVATE), list[int]()
    memory.part(CLOCK - 1)
    memory.watch(lambda partition: arrived.append(partition.index))
    in_flight = InFlight([0] * BUCKETS, show=lambda _: None, skips=False, pulled=[1])
    with town(2) as group:
        ranks: Any = Ranks(Beside(group.channels[0], group.aborts[0]), memory, by_bucket=by_bucket)
        weights = RankWeights(ranks, in_flight, memory, None)
        weights.begin(CLOCK)
        weights.go_on()
        yield ranks, weights, arrived, in_flight
        ranks.beside.close()


def test_those_of_the_first_layers_come_first_and_are_waited_for_by_themselves() -> None:
    with weights_of(by_bucket=True) as (ranks, weights, arrived, in_flight):
        ranks.let_in[2].set()
        weights.wait(None, frozenset({2}))
        assert (ranks.came, in_flight.versions) == ([2], [0, 0, CLOCK])
        assert weights.pending
        assert not weights.arrived
        assert not weights.arrive_within(0.0)
        for event in ranks.let_in:
            event.set()
        assert weights.arrive_within(LIMIT_S)
        assert weights.arrived
        weights.wait(None, None)
        assert (ranks.came, in_flight.versions) == ([2, 1, 0], [CLOCK] * BUCKETS)
        assert arrived == [2, 0]  # of this rank's own another one has told
        assert not weights.pending


@pytest.mark.parametrize("wanted", [None, frozenset({2})])
def test_else_all_come_at_once_when_they_are_waited_for(wanted: frozenset[int] | None) -> None:
    with weights_of(by_bucket=False) as (ranks, weights, arrived, in_flight):
        assert not weights.arrived
        weights.wait(None, wanted)
        assert (ranks.came, in_flight.versions) == ([None], [CLOCK] * BUCKETS)
        assert arrived == [0, 2]
        assert not weights.pending


@pytest.mark.parametrize("by_bucket", [True, False])
def test_where_versions_lie_apart_they_go_where_theirs_lie_and_are_shown_when_all_are_here(
    by_bucket: bool,
) -> None:
    """Until then the script reads those of before, which stay as they are."""
    with weights_of(by_bucket=by_bucket) as (ranks, weights, _, _):
        memory = ranks.memory
        before = memory.weights
        assert before is memory.of(CLOCK - 1) is not memory.of(CLOCK)
        if by_bucket:
            for bucket in (2, 1):
                ranks.let_in[bucket].set()
            weights.wait(None, frozenset({1}))
            assert memory.weights is before
            ranks.let_in[0].set()
        weights.wait(None, None)
        assert memory.weights is memory.of(CLOCK)
        assert all(place is memory.of(CLOCK).tensors for place in ranks.places)
