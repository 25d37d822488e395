"""Stages of a pipeline meet the shards with what they hold, and send each other what lies across a cut."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ps_wire.errors import GroupBroken, NonFiniteGradient
from ps_wire.spec.consistency import parse
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.group.arrived_weights import Versions
from ps_worker.group.ending import Ending
from ps_worker.group.stage_traffic import StageTable, StageTraffic
from tests.unit.ps_worker.group.wires import Town, town
from tests.until import LIMIT_S, until

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
        self,
        group: Town,
        plan: Plan,
        holders: Sequence[Sequence[int]],
        consistency: str = "bsp",
        table: int = 0,
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
                table,
                self.flat[rank],
                plan,
                StageTable(holders=holders),
                parse(consistency),
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

    def push(self, rank: int, step: int = 0, hyper: int = 1) -> list[Any]:
        buckets = range(len(self.plan.buckets))
        traffic = self.traffic[rank]
        return [
            reduced
            for bucket in buckets
            for reduced in traffic.push(
                bucket, step=step, weight=1.0, hyper=hyper, present=self.present(rank, bucket)
            )
        ]

    def pull(self, rank: int, step: int, version: int) -> Versions:
        """What its shards give is all of one version."""
        versions = [version] * self.plan.num_partitions
        places = {version: self.flat[rank]}
        return self.traffic[rank].spread(step, lambda: versions, places.__getitem__, lambda: ())


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

        table.flat[0][0].fill_(5.0)
        assert [it.newest for it in group.run(lambda rank: table.pull(rank, 1, 7))] == [[7], [7]]
    assert table.parameter(1, 1).eq(5.0).all()
    assert table.parameter(1, 0).eq(0.0).all(), "nobody needs it there"


def test_weights_across_a_cut_come_back_to_a_stage_in_its_schedule_or_before_it() -> None:
    """And who looks there for what the scripts of others do compares only that."""
    with town(2) as group:
        table = Table(group, plan_of(), [(0,), (1,), (1,)])

        def script(rank: int) -> list[Versions]:
            found = []
            for step in range(3):
                if rank == 0:
                    group.channels[0].stand("pipe.step()")
                found.append(table.pull(rank, step, step))
                if rank == 1:
                    group.channels[1].stand("pipe.step()")
                table.traffic[rank].arrive(step)
            return found

        found = group.run(script)
    assert [[it.clock for it in of] for of in found] == [[0, 1, 2]] * 2


def test_a_stage_in_its_step_is_named_by_one_in_its_schedule() -> None:
    with town(2) as group:
        table = Table(group, plan_of(APART[0]), APART[1])

        def script(rank: int) -> None:
            if rank:
                group.channels[1].stand("pipe.step()")
            else:
                table.traffic[0].arrive(3)
            until(lambda: group.channels[rank].compare_places() or group.channels[rank].check())

        found = group.run(script)

    assert all(isinstance(error, GroupBroken) for error in found), found
    assert "rank 0 is at step 3 of table 0, and rank 1 on host1 at pipe.step();" in str(found[0])


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


APART = ((0, 1, 1), [(0,), (1,), (1,)])  # stages of parameters, and who holds them


@pytest.mark.parametrize("late", [0, 1])
def test_a_stage_pushes_and_has_its_weights_while_another_is_in_its_schedule(late: int) -> None:
    over = threading.Event()

    with town(2) as group:
        table = Table(group, plan_of(APART[0]), APART[1], "asp")

        def script(rank: int) -> list[Versions]:
            found = [table.pull(rank, 0, 0)]
            for step in range(2):
                if rank == late and step == 0:
                    assert over.wait(LIMIT_S)
                table.push(rank, step)
                found.append(table.pull(rank, step + 1, version=10 * rank + step))
                over.set()
            return found

        first, second = group.run(script)

    for found in (first, second):
        assert [(it.clock, it.spread) for it in found] == [(0, 0), (0, 0), (1, 10)], "heard a step later"
    assert set(first[2].newest) == {1, 10}
    assert set(second[2].newest) == {0, 11}


def test_a_second_table_is_trained_behind_a_first_one_and_in_turn_with_it() -> None:
    with town(2) as group:
        first, second = (Table(group, plan_of(APART[0]), APART[1], table=it) for it in range(2))

        def script(rank: int) -> list[int]:
            clocks = [first.pull(rank, it, it).clock for it in range(3)]
            clocks += [second.pull(rank, it, it).clock for it in range(3)]
            return [*clocks, first.pull(rank, 3, 3).clock, second.pull(rank, 3, 3).clock]

        assert group.run(script) == [[0, 0, 1, 0, 0, 1, 2, 2]] * 2


def test_under_bsp_stages_at_two_versions_end_the_group() -> None:
    with town(2) as group:
        table = Table(group, plan_of(APART[0]), APART[1])
        found = group.run(lambda rank: table.pull(rank, 0, version=5 + rank))

    assert [type(it) for it in found] == [GroupBroken] * 2
    assert "versions 5 to 6" in str(found[0])


def test_stages_with_other_hyper_parameters_end_the_group_at_the_next_step() -> None:
    with town(2) as group:
        table = Table(group, plan_of(APART[0]), APART[1])

        def script(rank: int) -> None:
            for step in range(2):
                table.push(rank, step, hyper=rank)
                table.pull(rank, step + 1, version=step)

        found = group.run(script)

    assert [type(it) for it in found] == [GroupBroken] * 2
    assert "param_groups differ" in str(found[1])


def test_a_stage_without_a_gradient_abstains_by_itself() -> None:
    with town(2) as group:
        table = Table(group, plan_of(APART[0]), APART[1])
        found = group.run(lambda rank: table.push(rank) if rank == 0 else table.traffic[rank].abstain(0))

    assert [index for reduced in found[0] for index in reduced.partitions] == table.traffic[0].owned
    assert not any(reduced.partitions for reduced in found[1])


def test_an_owner_without_a_gradient_pushes_what_others_hold_of_its_partition() -> None:
    with town(2) as group:
        table = Table(group, plan_of(), [(0,), (1,), (1,)])
        found = group.run(lambda rank: table.push(rank) if rank else table.traffic[rank].abstain(0))

    (reduced,) = found[0]
    assert (reduced.weight, reduced.present) == (1.0, [[True, True, False]])
    assert table.parameter(0, 1).eq(20.0).all()


def refuse() -> Sequence[int]:
    raise NonFiniteGradient("worker 0 has pushed NaN")


def test_an_error_of_the_servers_on_one_stage_ends_it_and_the_group() -> None:
    """Where stages wait for each other it is raised on all."""
    with town(2) as group:
        for step, other in ((0, NonFiniteGradient), (1, GroupBroken)):
            table = Table(group, plan_of(APART[0]), APART[1])

            def script(rank: int, table: Table = table, step: int = step) -> Versions | None:
                if rank:
                    return table.traffic[rank].spread(step, refuse, lambda _: table.flat[rank], lambda: ())
                if step:
                    return group.channels[0].share("the schedule")  # type: ignore[return-value]
                return table.pull(rank, step, 0)

            assert [type(it) for it in group.run(script)] == [other, NonFiniteGradient]
        assert "worker 0 has pushed NaN" in group.said[0]
