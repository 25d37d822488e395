"""Law 16: what a group pushes is, bit for bit, the rank-order mean of its ranks' gradients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from ps_server.shard.optimizer.mean import Scratch, mean
from ps_wire.errors import GroupBroken, NonFiniteGradient
from ps_wire.frames.buffer import as_tensor
from ps_wire.process.rank_mean import rank_mean
from ps_wire.spec.plan import Partition
from ps_worker.group.beside import Beside
from ps_worker.group.ending import Ending
from ps_worker.group.gradient_reduce import GradientReduce
from ps_worker.group.hosts import Hosts
from ps_worker.group.lent_gradients import Lent
from tests.unit.ps_worker.group.wires import Town, town
from tests.until import until

SIZES = (1001, 64)  # elements of each bucket
PARTITIONS = [
    Partition(index=0, bucket=0, shard=0, offset=0, numel=600),
    Partition(index=1, bucket=0, shard=1, offset=600, numel=401),
    Partition(index=2, bucket=1, shard=0, offset=0, numel=64),
]
PIECES = [2, 1, 1]  # of parameters in each
ALL = [[[True, True], [True]], [[True]]]  # by bucket and partition


def gradients(rank: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(size, generator=generator).mul(10.0**rank).to(dtype) for size in SIZES]


class Table:
    """One table on all ranks of a group.

    Attributes:
        flat: gradients by rank.
    """

    def __init__(
        self,
        group: Town,
        dtype: torch.dtype = torch.float32,
        *,
        lent: bool = False,
        hosts: Hosts | None = None,
        scripts: Town | None = None,
        endings: list[Ending] | None = None,
    ) -> None:
        ranks = range(len(group.channels))
        self.flat = [gradients(rank, dtype) for rank in ranks]
        self.kept = [[it.clone() for it in mine] for mine in self.flat]
        self.asked = [False for _ in ranks]
        own = [Ending(lambda rank=rank: self.asked[rank]) for rank in ranks]  # type: ignore[misc]
        self.endings = own if endings is None else endings
        self.reduces = [
            GradientReduce(
                group.channels[rank],
                self.endings[rank],
                0,
                self.flat[rank],
                PARTITIONS,
                PIECES,
                self.lent_to(rank, hosts) if lent else None,
                hosts=hosts,
                scripts=None if scripts is None else scripts.channels[rank],
            )
            for rank in ranks
        ]

    def lent_to(self, rank: int, hosts: Hosts | None) -> Lent:
        """The gradients of the others, of those on other hosts nothing."""
        near = range(len(self.flat)) if hosts is None else hosts.near(rank)
        tensors = [flat if other in near and other != rank else () for other, flat in enumerate(self.flat)]
        memories = [
            os.open(os.devnull, os.O_RDONLY) if other in near else None for other in range(len(tensors))
        ]
        return Lent(tensors, memories)

    def push(
        self,
        rank: int,
        *,
        step: int = 0,
        hyper: int = 1,
        present: Sequence[Any] = ALL,
        apart: bool = False,
    ) -> list[Any]:
        reduce = self.reduces[rank]
        given = [
            reduce.push(bucket, step=step, weight=1.0, hyper=hyper, present=there, apart=apart)
            for bucket, there in enumerate(present)
        ]
        return [it for ready in (*given, reduce.rest()) for it in ready]

    def unchanged(self) -> bool:
        """Whether no rank's gradients were written."""
        pairs = zip(self.flat, self.kept, strict=True)
        return all(torch.equal(x, y) for mine, was in pairs for x, y in zip(mine, was, strict=True))

    def reduced(self) -> list[torch.Tensor]:
        """By bucket, each partition as its owner has it."""
        made = [torch.zeros_like(it) for it in self.flat[0]]
        for reduce, flat in zip(self.reduces, self.flat, strict=True):
            for index in reduce.owned:
                it = PARTITIONS[index]
                place = slice(it.offset, it.offset + it.numel)
                made[it.bucket][place] = flat[it.bucket][place]
        return made


def pushed(found: list[Any]) -> dict[int, tuple[float, Any]]:
    """By partition: weight and presence, of what all ranks push."""
    every = [reduced for rank in found for reduced in rank]
    assert sum(len(reduced.partitions) for reduced in every) == len(PARTITIONS)
    return {
        index: (reduced.weight, there)
        for reduced in every
        for index, there in zip(reduced.partitions, reduced.present, strict=True)
    }


EVERY = {0: (1.0, [True, True]), 1: (1.0, [True]), 2: (1.0, [True])}


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_mean_is_that_of_the_servers_to_the_bit(
    size: int, compiled: bool, lent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr("ps_wire.process.kernels.KERNELS", None)
    with town(size) as group:
        table = Table(group, lent=lent)
        wanted = [
            mean(
                [gradients(rank, torch.float32)[bucket] for rank in range(size)], [1.0] * size, Scratch()
            ).values.clone()
            for bucket in range(len(SIZES))
        ]

        found = group.run(table.push)

    assert all(torch.equal(got, want) for got, want in zip(table.reduced(), wanted, strict=True))
    assert pushed(found) == EVERY
    assert len([reduce for reduce in table.reduces if reduce.owned]) == min(size, len(PARTITIONS))


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("idle", [False, True])
def test_buckets_that_leave_beside_a_script_wait_for_ranks_that_reduce_in_their_step(
    lent: bool, idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0's hooks fire in another order, and before anybody else is there; rank 1 may have no gradient."""
    with town(2) as group:
        table = Table(group, lent=lent)
        monkeypatch.setattr(group.channels[0], "all_have_said", lambda: False)  # yet, whenever it looks
        wanted = [rank_mean(of, torch.empty_like(of[0])) for of in zip(*table.kept, strict=True)]
        beside = Beside(group.channels[0], group.aborts[0])
        given: dict[int, list[Any]] = {}

        def leave(bucket: int) -> None:
            pushes = partial(table.reduces[0].push, bucket, step=0, weight=1.0, hyper=1)
            given[bucket] = pushes(present=ALL[bucket], waits=True)

        def step(rank: int) -> list[Any]:
            if rank:
                return table.reduces[1].abstain(0) if idle else table.push(1)
            beside.wait()
            assert table.reduces[0].rest() == []  # each came with its bucket
            return [it for bucket in given.values() for it in bucket]

        for bucket in (1, 0):
            beside.put(bucket, partial(leave, bucket))
        found = group.run(step)
        beside.close()

    assert list(given) == [0, 1]
    assert pushed(found) == EVERY
    assert all(map(torch.equal, table.reduced(), table.kept[0] if idle else wanted))


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_added_in_float32_and_rounded_once(dtype: torch.dtype, lent: bool) -> None:
    with town(3) as group:
        table = Table(group, dtype, lent=lent)
        parts = [gradients(rank, dtype) for rank in range(3)]
        wanted = [((a.float() + b.float() + c.float()) / 3).to(dtype) for a, b, c in zip(*parts, strict=True)]

        group.run(table.push)

    assert all(torch.equal(got, want) for got, want in zip(table.reduced(), wanted, strict=True))


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("idle", [0, 1, 2])
def test_a_rank_without_a_gradient_is_left_out_of_the_mean(idle: int, lent: bool) -> None:
    with town(3) as group:
        table = Table(group, lent=lent)
        a, b = (gradients(rank, torch.float32) for rank in range(3) if rank != idle)
        wanted = [(x + y) / 2 for x, y in zip(a, b, strict=True)]

        found = group.run(lambda rank: table.reduces[rank].abstain(0) if rank == idle else table.push(rank))

    assert all(torch.equal(got, want) for got, want in zip(table.reduced(), wanted, strict=True))
    assert pushed(found) == EVERY


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("idle", [None, 0, 2])
@pytest.mark.parametrize("machines", ["abb", "aabbb", "abab"])
def test_on_several_hosts_each_sums_by_itself_and_owners_add_the_sums_in_the_order_of_hosts(
    machines: str, idle: int | None, dtype: torch.dtype
) -> None:
    hosts = Hosts(machines)
    with town(len(machines)) as group:
        table = Table(group, dtype, lent=True, hosts=hosts)

        found = group.run(lambda rank: table.reduces[rank].abstain(0) if rank == idle else table.push(rank))

    there = [[rank for rank in ranks if rank != idle] for ranks in hosts.ranks]
    for bucket, got in enumerate(table.reduced()):
        sums = []
        for ranks in filter(None, there):
            parts = [gradients(rank, dtype)[bucket].float() for rank in ranks]
            sums.append(sum(parts[1:], start=parts[0]))
        wanted = sum(sums[1:], start=sums[0]) / sum(map(len, there))
        assert torch.equal(got, wanted.to(dtype))
    assert pushed(found) == EVERY
    assert all(line.empty() for line in group.lines.values()), "what was sent was received"


def test_who_reads_gradients_where_they_lie_writes_its_own_alone() -> None:
    with town(3) as group:
        table = Table(group, lent=True)

        group.run(table.push)

    for rank, reduce in enumerate(table.reduces):
        for index, it in enumerate(PARTITIONS):
            place = slice(it.offset, it.offset + it.numel)
            same = torch.equal(table.flat[rank][it.bucket][place], table.kept[rank][it.bucket][place])
            assert same == (index not in reduce.owned)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_what_a_shard_can_read_stays_apart_in_rank_order_and_nobody_writes(size: int) -> None:
    with town(size) as group:
        table = Table(group, lent=True)

        found = group.run(lambda rank: table.push(rank, apart=True))

    assert pushed(found) == EVERY
    assert table.unchanged()
    for reduced in (one for rank in found for one in rank):
        for index, terms in zip(reduced.partitions, reduced.terms, strict=True):
            it = PARTITIONS[index]
            flats = [gradients(rank, torch.float32)[it.bucket] for rank in range(size)]
            wanted = [flat[it.offset : it.offset + it.numel] for flat in flats]
            assert all(map(torch.equal, [as_tensor(term, torch.float32) for term in terms], wanted))


@pytest.mark.parametrize("why", ["a rank abstains", "16 bits", "not lent", "hosts"])
def test_what_no_shard_can_add_up_the_owner_does(why: str) -> None:
    dtype = torch.bfloat16 if why == "16 bits" else torch.float32
    hosts = Hosts("aab") if why == "hosts" else None
    idle = 1 if why == "a rank abstains" else None
    with town(3) as group:
        table = Table(group, dtype, lent=why != "not lent", hosts=hosts)

        found = group.run(
            lambda rank: table.reduces[rank].abstain(0) if rank == idle else table.push(rank, apart=True)
        )

    assert pushed(found) == EVERY
    assert not any(any(reduced.terms) for rank in found for reduced in rank)
    if hosts is None:
        parts = [gradients(rank, dtype) for rank in range(3) if rank != idle]
        wanted = [rank_mean(of, torch.empty_like(of[0])) for of in zip(*parts, strict=True)]
        assert all(map(torch.equal, table.reduced(), wanted))


def test_where_no_rank_has_a_gradient_nothing_is_pushed() -> None:
    with town(3) as group:
        table = Table(group)

        assert group.run(lambda rank: table.reduces[rank].abstain(0)) == [[], [], []]
        assert group.run(lambda rank: table.reduces[rank].abstain(0)) == [[], [], []]  # again


def test_a_parameter_is_there_if_one_rank_has_used_it() -> None:
    some = [[[[True, False], [False]], [[False]]], [[[False, False], [True]], [[False]]]]

    with town(2) as group:
        table = Table(group)

        found = group.run(lambda rank: table.push(rank, present=some[rank]))

    assert {index: there for index, (_, there) in pushed(found).items()} == {
        0: [True, False],
        1: [True],
        2: [False],
    }


def test_ranks_with_other_hyper_parameters_end_together() -> None:
    with town(2) as group:
        table = Table(group)

        found = group.run(lambda rank: table.push(rank, hyper=rank))

    assert all(isinstance(error, GroupBroken) for error in found)
    assert any(
        "param_groups" in error.message for error in found
    )  # another may hear first that its peer has gone


def test_a_rank_a_step_ahead_of_another_is_named() -> None:
    with town(2) as group:
        table = Table(group)

        found = group.run(lambda rank: table.push(rank, step=rank))

    assert all(isinstance(error, GroupBroken) for error in found)
    assert "rank 0 is at step 0 of table 0, and rank 1 on host1 at step 1 of table 0" in found[0].message


@pytest.mark.parametrize("early", [False, True])
def test_a_rank_in_its_step_is_named_by_one_that_is_elsewhere(early: bool) -> None:
    """Over the channel of the scripts, whether buckets have left before its step or leave in it."""
    with town(2) as scripts, town(2) as group:
        table = Table(group, scripts=scripts)
        beside = Beside(group.channels[0], group.aborts[0], scripts.channels[0].compare_places)

        def step(rank: int) -> object:
            if rank:
                return scripts.channels[1].share("finish()")
            if early:
                beside.put(0, lambda: table.push(0))
            table.reduces[0].arrive(3)
            table.reduces[0].arrive(3)  # again
            beside.wait() if early else until(scripts.channels[0].compare_places)
            return None

        found = scripts.run(step)
        group.cut(1)
        beside.close()

    assert all(isinstance(error, GroupBroken) for error in found)
    wanted = "rank 0 is at step 3 of table 0, and rank 1 on host1 at finish()"
    assert all(wanted in str(error) for error in found)


def test_a_step_that_was_broken_off_in_its_middle_ends_the_group() -> None:
    def script(rank: int) -> object:
        if rank:
            return table.push(rank)
        table.reduces[0].push(0, step=0, weight=1.0, hyper=1, present=ALL[0])
        return table.reduces[0].abstain(0)

    with town(2) as group:
        table = Table(group)

        found = group.run(script)

    assert isinstance(found[0], GroupBroken)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_weights_and_versions_of_the_owners_reach_all_ranks(size: int) -> None:
    versions = [3, 5, 4]

    def script(rank: int) -> Sequence[int]:
        own = table.reduces[rank].owned
        for index in own:  # those that it has pulled
            it = PARTITIONS[index]
            place = slice(it.offset, it.offset + it.numel)
            shown[rank][it.bucket][place] = weights[it.bucket][place]
        known = [version if index in own else 0 for index, version in enumerate(versions)]
        places = {max(versions): shown[rank]}  # where those of that version lie
        return table.reduces[rank].spread(1, lambda: known, places.__getitem__, frozenset).newest

    with town(size) as group:
        table = Table(group)
        weights = [torch.randn(count) for count in SIZES]
        shown = [[torch.zeros(count) for count in SIZES] for _ in range(size)]

        found = group.run(script)

    assert found == [versions] * size
    assert all(torch.equal(x, y) for mine in shown for x, y in zip(mine, weights, strict=True))


def test_weights_of_one_bucket_reach_all_ranks_and_those_of_others_stay() -> None:
    def script(rank: int) -> Sequence[int]:
        shown[rank][0].fill_(1.0 + rank)
        shown[rank][1].fill_(1.0 + rank)
        return (
            table.reduces[rank]
            .spread(1, lambda: [3, 5, 4], lambda _: shown[rank], frozenset, bucket=0)
            .newest
        )

    with town(2) as group:
        table = Table(group)
        shown = [[torch.zeros(count) for count in SIZES] for _ in range(2)]

        found = group.run(script)

    assert found == [[3, 5]] * 2
    assert all(torch.equal(x, y) for x, y in zip(shown[0][:1], shown[1][:1], strict=True))
    assert [float(mine[1].mean()) for mine in shown] == [1.0, 2.0]


def test_scripts_whose_weights_come_by_bucket_compare_each_step_that_they_come_to() -> None:
    """They say so in each, and hear of it in the next."""

    def step(rank: int, number: int) -> int:
        reduce = table.reduces[rank]
        reduce.arrive(number)
        for bucket in (1, 0):
            reduce.spread(number + 1, lambda: [0, 0, 0], lambda _: table.flat[rank], frozenset, bucket=bucket)
        return number

    with town(2) as group, town(2) as scripts:
        table = Table(group, scripts=scripts)

        for number in range(3):
            assert group.run(lambda rank: step(rank, number)) == [number] * 2  # noqa: B023 - over by then
        assert scripts.run(lambda rank: len(scripts.channels[rank].share("something else"))) == [2, 2]


def test_weights_go_by_bucket_where_all_ranks_want_it_and_the_group_does_not_end() -> None:
    """In the last step all of them hear at one place that it was the last."""

    def step(rank: int, number: int, wants: Sequence[bool]) -> bool:
        table.reduces[rank].want_by_bucket(wants[rank])
        table.push(rank, step=number)
        return table.reduces[rank].by_bucket

    with town(2) as group:
        table = Table(group)

        assert group.run(lambda rank: step(rank, 0, (True, False))) == [False, False]
        assert group.run(lambda rank: step(rank, 1, (True, True))) == [True, True]
        table.asked[1] = True
        assert group.run(lambda rank: step(rank, 2, (True, True))) == [False, False]


def test_weights_that_a_rank_sees_where_the_servers_have_them_are_not_sent_to_it() -> None:
    def script(rank: int) -> list[int]:
        sees = {0} if rank == 1 else set()  # the shard of partitions 0 and 2
        return table.reduces[rank].spread(1, lambda: [0, 0, 0], lambda _: shown[rank], lambda: sees)

    with town(2) as group:
        table = Table(group)
        shown = [[torch.full((size,), float(rank)) for size in SIZES] for rank in range(2)]
        owned = [set(reduce.owned) for reduce in table.reduces]

        group.run(script)

    assert owned == [{0}, {1, 2}]
    assert (shown[0][0][600:] == 1.0).all()
    assert (shown[0][1] == 1.0).all()
    assert (shown[1][0][:600] == 1.0).all()  # it maps them


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_one_owner_in_place_of_its_weights_is_raised_on_all_ranks(failing: int) -> None:
    def arrive(rank: int) -> list[int]:
        if rank == failing:
            raise NonFiniteGradient("a gradient held NaN")
        return [0, 0, 0]

    with town(2) as group:
        table = Table(group)

        found = group.run(
            lambda rank: table.reduces[rank].spread(1, lambda: arrive(rank), lambda _: [], frozenset)
        )

    assert [type(error) for error in found] == [NonFiniteGradient] * 2


@pytest.mark.parametrize("asked", [0, 1])
def test_one_rank_that_is_to_end_ends_all_at_the_same_step(asked: int) -> None:
    def step(rank: int, number: int) -> bool:
        table.push(rank, step=number)
        table.reduces[rank].spread(number + 1, lambda: [0, 0, 0], lambda _: table.flat[rank], frozenset)
        return table.endings[rank].agreed

    with town(2) as group:
        table = Table(group)

        assert group.run(lambda rank: step(rank, 0)) == [False, False]
        table.asked[asked] = True
        assert group.run(lambda rank: step(rank, 1)) == [True, True]


def test_what_was_heard_with_another_table_ends_no_rank_at_a_step_of_this_one() -> None:
    """Where buckets of both leave beside scripts, one rank hears it before its step, another one behind."""

    def agreed(table: Table, rank: int) -> bool:
        table.reduces[rank].spread(1, lambda: [0, 0, 0], lambda _: table.flat[rank], frozenset)
        return table.endings[rank].agreed

    with town(2) as group, town(2) as others:
        first = Table(group)
        second = Table(others, endings=first.endings)
        group.run(first.push)
        first.asked[1] = True
        others.run(second.push)

        assert group.run(lambda rank: agreed(first, rank)) == [False, False]
        assert others.run(lambda rank: agreed(second, rank)) == [True, True]
