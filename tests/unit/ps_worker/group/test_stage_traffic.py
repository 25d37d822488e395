"""Stages of a pipeline meet the shards with what they hold, and send each other what lies across a cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ps_wire.errors import NonFiniteGradient
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.group.ending import Ending
from ps_worker.group.stage_traffic import StageTable, StageTraffic
from tests.unit.ps_worker.group.wires import Town, town

SGD = OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),)))
SIZES = (3000, 1000, 500)  # elements of the parameters a, b, c


def plan_of(stages: tuple[int, ...] = (), shards: int = 1) -> Plan:
    parameters = tuple(
        ParameterSpec(name=name, shape=(numel,)) for name, numel in zip("abc", SIZES, strict=True)
    )
    return Plan(TableSpec(number=0, parameters=parameters, optimizer=SGD, stages=stages), shards)


class Table:
    """One table on all stages.

    Attributes:
        flat: gradients, or weights, by rank: 10 ** rank times the parameter's number, where it is held.
    """

    def __init__(
        self, group: Town, plan: Plan, holders: Sequence[Sequence[int]], trains: bool = True
    ) -> None:
        ranks = range(len(group.channels))
        self.plan = plan
        self.holders = holders
        self.flat = [[torch.zeros(bucket.numel) for bucket in plan.buckets] for _ in ranks]
        for rank in ranks:
            for number, of in enumerate(holders):
                if rank in of:
                    self.parameter(rank, number).fill_((number + 1) * 10.0**rank)
        self.traffic = [
            StageTraffic(
                group.channels[rank],
                Ending(lambda: False),
                0,
                self.flat[rank],
                plan,
                StageTable(holders=holders, trains=lambda rank=rank: trains or rank == 0),  # type: ignore[misc]
            )
            for rank in ranks
        ]

    def parameter(self, rank: int, number: int) -> torch.Tensor:
        """In flat memory."""
        for bucket in self.plan.buckets:
            for place in bucket.placements:
                if place.parameter == number:
                    return self.flat[rank][bucket.index][place.offset : place.offset + place.numel]
        raise AssertionError(number)

    def present(self, rank: int, bucket: int) -> list[list[bool]]:
        every = [self.plan.partition(index) for index in range(self.plan.num_partitions)]
        return [
            [rank in self.holders[piece.parameter] for piece in self.plan.pieces(partition)]
            for partition in every
            if partition.bucket == bucket
        ]

    def push(self, rank: int) -> list[Any]:
        buckets = range(len(self.plan.buckets))
        traffic = self.traffic[rank]
        return [
            traffic.push(bucket, step=0, weight=1.0, hyper=1, present=self.present(rank, bucket))
            for bucket in buckets
        ]


def test_where_a_table_is_cut_as_the_stages_are_each_pushes_its_own_and_nothing_travels() -> None:
    with town(2) as group:
        table = Table(group, plan_of((0, 1, 1)), [(0,), (1,), (1,)])
        owned = [traffic.owned for traffic in table.traffic]
        pushed = group.run(table.push)

    assert sorted(owned[0] + owned[1]) == list(range(table.plan.num_partitions))
    for rank, of in enumerate(pushed):
        assert [index for reduced in of for index in reduced.partitions] == owned[rank]
        assert all(all(there) for reduced in of for there in reduced.present)
    assert table.parameter(0, 1).count_nonzero() == table.parameter(1, 0).count_nonzero() == 0


def test_what_lies_across_a_cut_is_pushed_by_who_holds_most_and_its_weights_come_back() -> None:
    with town(2) as group:
        table = Table(group, plan_of(), [(0,), (1,), (1,)])
        assert table.plan.num_partitions == 1
        assert [traffic.owned for traffic in table.traffic] == [[0], []]
        pushed = group.run(table.push)
        assert pushed[0][0].present == [[True, True, True]]
        assert [list(reduced.partitions) for reduced in pushed[1]] == [[]]
        assert table.parameter(0, 2).eq(30.0).all()

        def spread(rank: int) -> list[int]:
            return table.traffic[rank].spread(1, lambda: [7], lambda: table.flat[rank], lambda: ())

        table.flat[0][0].fill_(5.0)
        assert group.run(spread) == [[7], [7]]
    assert table.parameter(1, 1).eq(5.0).all()
    assert table.parameter(1, 0).eq(0.0).all(), "nobody needs it there"


def test_first_weights_come_to_who_brings_them() -> None:
    with town(2) as group:
        table = Table(group, plan_of(), [(0,), (1,), (0, 1)])
        assert group.run(lambda rank: table.traffic[rank].bring(table.flat[rank])) == [None, None]

    assert [traffic.brings for traffic in table.traffic] == [[0], []]
    assert table.parameter(0, 1).eq(20.0).all()
    assert table.parameter(0, 2).eq(3.0).all(), "of tied weights, those of who pushes them"


def test_gradients_of_tied_weights_are_added_at_their_owner() -> None:
    with town(3) as group:
        table = Table(group, plan_of((0, 1, 0)), [(0,), (1,), (0, 2)])
        pushed = group.run(table.push)

    assert table.parameter(0, 2).eq(3.0 + 300.0).all()
    assert all(all(there) for reduced in pushed[0] for there in reduced.present)


def test_a_step_is_pushed_by_all_stages_or_by_none() -> None:
    with town(2) as group:
        table = Table(group, plan_of((0, 1, 1)), [(0,), (1,), (1,)])
        found = group.run(lambda rank: table.push(rank) if rank == 0 else table.traffic[rank].abstain(0))

    assert found == [[None, None], []], "stage 1 had an overflow"


def test_a_stage_without_anything_to_train_holds_up_no_step() -> None:
    with town(2) as group:
        table = Table(group, plan_of((0, 1, 1)), [(0,), (1,), (1,)], trains=False)
        found = group.run(lambda rank: table.push(rank) if rank == 0 else table.traffic[rank].abstain(0))

    assert [index for reduced in found[0] for index in reduced.partitions] == table.traffic[0].owned
    assert not any(reduced.partitions for reduced in found[1])


def test_an_error_of_the_servers_on_one_stage_is_raised_on_all() -> None:
    def refuse() -> Sequence[int]:
        raise NonFiniteGradient("worker 0 has pushed NaN")

    with town(2) as group:
        table = Table(group, plan_of((0, 1, 1)), [(0,), (1,), (1,)])

        def spread(rank: int) -> list[int]:
            arrive = refuse if rank else lambda: [0] * table.plan.num_partitions
            return table.traffic[rank].spread(1, arrive, lambda: table.flat[rank], lambda: ())

        found = group.run(spread)

    assert [type(it) for it in found] == [NonFiniteGradient] * 2
