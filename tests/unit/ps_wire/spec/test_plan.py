"""The partition plan: laws over random tables."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ps_wire.spec.dtypes import ITEM_BYTES
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import (
    MIB,
    PAGE_BYTES,
    BucketOptions,
    Hyperparameters,
    OptimizerSpec,
    ParameterSpec,
    TableSpec,
)

GROUPS = 3
SGD = OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),) * GROUPS))
DEFAULT = BucketOptions()


def table(*parameters: ParameterSpec, buckets: BucketOptions = DEFAULT) -> TableSpec:
    return TableSpec(number=0, parameters=parameters, optimizer=SGD, buckets=buckets)


def flat(numel: int, name: str = "w", **fields) -> ParameterSpec:
    return ParameterSpec(name=name, shape=(numel,), **fields)


@st.composite
def tables(draw) -> TableSpec:
    shapes = st.lists(st.integers(0, 40), max_size=3) | st.tuples(st.integers(0, 9000))
    count = draw(st.integers(1, 12))
    parameters = [
        ParameterSpec(
            name=f"p{index}",
            shape=tuple(draw(shapes)),
            dtype=draw(st.sampled_from(sorted(ITEM_BYTES))),
            group=draw(st.integers(0, GROUPS - 1)),
            device=draw(st.integers(0, 1)),
        )
        for index in range(count)
    ]
    stages = draw(st.just(()) | st.tuples(*[st.integers(0, 2)] * count))
    options = BucketOptions(
        bucket_bytes=draw(st.integers(0, 200_000)),
        first_bucket_bytes=draw(st.integers(0, 20_000)),
        partition_bytes=draw(st.integers(1, 5)) * PAGE_BYTES,
    )
    return replace(table(*parameters, buckets=options), stages=stages)


PLANS = st.builds(Plan, tables(), st.integers(1, 7))
# 129 pages over 8 shards: 17 pages for each of the first 7 shards, 10 for the last.
UNEVEN = Plan(table(flat(129 * 1024), buckets=BucketOptions(partition_bytes=5 * PAGE_BYTES)), 8)
# 5 pages over 4 shards: 2, 2, 1 and none.
SHORT = Plan(table(flat(5 * 1024)), 4)


def partitions(plan: Plan):
    return [plan.partition(index) for index in range(plan.num_partitions)]


@given(PLANS)
@example(UNEVEN)
@example(SHORT)
def test_every_element_is_in_exactly_one_piece(plan):
    """Pieces cover each parameter from its first element to its last, once, without padding."""
    found = {index: [] for index in range(len(plan.parameters))}
    for partition in partitions(plan):
        pieces = plan.pieces(partition)
        for piece in pieces:
            assert piece.numel > 0
            assert 0 <= piece.offset <= partition.numel - piece.numel
            found[piece.parameter].append((piece.parameter_offset, piece.parameter_offset + piece.numel))
        for one, other in pairwise(pieces):
            assert one.offset + one.numel <= other.offset
    for index, parameter in enumerate(plan.parameters):
        ends = [0] + [end for _, end in sorted(found[index])]
        assert [start for start, _ in sorted(found[index])] == ends[:-1]
        assert ends[-1] == parameter.numel


@given(PLANS)
@example(UNEVEN)
def test_a_piece_is_where_its_parameter_is_placed(plan):
    """A piece's place in its partition and in its parameter are the same element of the bucket."""
    for partition in partitions(plan):
        places = {place.parameter: place.offset for place in plan.buckets[partition.bucket].placements}
        for piece in plan.pieces(partition):
            in_bucket = partition.offset + piece.offset
            assert in_bucket == places[piece.parameter] + piece.parameter_offset


@given(PLANS)
@example(UNEVEN)
def test_parameters_are_cut_at_multiples_of_16_elements(plan):
    """Fused kernels treat the last elements of a slice differently: no other cut keeps the bits."""
    for partition in partitions(plan):
        assert all(piece.parameter_offset % 16 == 0 for piece in plan.pieces(partition))


@given(PLANS)
def test_parameters_lie_at_64_byte_boundaries_without_overlap(plan):
    """Each parameter starts at a multiple of 64 bytes and of 16 elements, behind the one before it."""
    for bucket in plan.buckets:
        for place in bucket.placements:
            assert place.offset * bucket.item_bytes % 64 == place.offset % 16 == 0
            assert place.numel == plan.parameters[place.parameter].numel
        ends = [place.offset + place.numel for place in bucket.placements]
        assert all(end <= place.offset for end, place in zip(ends, bucket.placements[1:], strict=False))
        assert ends[-1] <= bucket.numel


@given(PLANS)
@example(UNEVEN)
@example(SHORT)
def test_slices_and_buckets_are_whole_pages(plan):
    """Buckets, slices and partitions begin and end at multiples of 4096 bytes; none is empty."""
    for bucket in plan.buckets:
        bounds = [bucket.slice_bounds(shard) for shard in range(plan.num_shards)]
        assert bounds[0][0] == 0
        assert bounds[-1][1] == bucket.numel > 0
        assert all(end == start for (_, end), (start, _) in pairwise(bounds))
        for edge in (edge for bound in bounds for edge in bound):
            assert edge * bucket.item_bytes % PAGE_BYTES == 0
        for partition in [partition for partition in partitions(plan) if partition.bucket == bucket.index]:
            assert partition.offset * bucket.item_bytes % PAGE_BYTES == 0
            assert partition.numel * bucket.item_bytes % PAGE_BYTES == 0 < partition.numel


@given(PLANS)
@example(UNEVEN)
@example(SHORT)
def test_every_bucket_is_even_over_the_shards(plan):
    """All slices are as long, but for the last one that is not empty: none can be a page shorter."""
    for bucket in plan.buckets:
        lengths = [end - start for start, end in map(bucket.slice_bounds, range(plan.num_shards))]
        held = [length for length in lengths if length]
        assert lengths == held + [0] * (plan.num_shards - len(held))
        assert set(held[:-1]) <= {bucket.slice_numel}
        assert held[-1] <= bucket.slice_numel
        page = PAGE_BYTES // bucket.item_bytes
        assert (bucket.slice_numel - page) * plan.num_shards < bucket.numel
    assert [plan.slice_bytes(shard) for shard in range(plan.num_shards)] == [
        sum(
            partition.numel * plan.buckets[partition.bucket].item_bytes
            for partition in plan.partitions_of_shard(shard)
        )
        for shard in range(plan.num_shards)
    ]


def test_slices_as_planned():
    """129 pages over 8 shards are seven slices of 17 pages and one of 10; 5 over 4 are 2, 2, 1, 0."""
    assert [UNEVEN.slice_bytes(shard) // PAGE_BYTES for shard in range(8)] == [17] * 7 + [10]
    assert [SHORT.slice_bytes(shard) // PAGE_BYTES for shard in range(4)] == [2, 2, 1, 0]


@given(PLANS)
@example(UNEVEN)
@example(SHORT)
def test_partitions_lie_inside_one_slice(plan):
    """A partition is part of its shard's slice, and full-size unless it is the slice's last."""
    for partition in partitions(plan):
        bucket = plan.buckets[partition.bucket]
        start, end = bucket.slice_bounds(partition.shard)
        assert start <= partition.offset < partition.offset + partition.numel <= end
        assert (partition.offset - start) % bucket.partition_numel == 0
        if partition.offset + partition.numel < end:
            assert partition.numel == bucket.partition_numel


@given(tables(), st.integers(1, 7))
def test_no_partition_is_larger_than_partition_bytes(spec, num_shards):
    """`partition_bytes` is the most that travels in one frame."""
    plan = Plan(spec, num_shards)
    for partition in partitions(plan):
        item_bytes = plan.buckets[partition.bucket].item_bytes
        assert partition.numel * item_bytes <= spec.buckets.partition_bytes


@given(PLANS)
def test_buckets_are_in_backward_order(plan):
    """Parameters of a bucket, and buckets by their last parameter, are in reverse registration order."""
    for bucket in plan.buckets:
        members = [place.parameter for place in bucket.placements]
        assert members == sorted(members, reverse=True)
    lasts = [bucket.placements[-1].parameter for bucket in plan.buckets]
    assert lasts == sorted(lasts, reverse=True)
    assert [bucket.index for bucket in plan.buckets] == list(range(len(plan.buckets)))


@given(PLANS)
def test_a_bucket_holds_one_group_dtype_and_device(plan):
    """All parameters of a bucket have its group, dtype and device, and each is in one bucket."""
    for bucket in plan.buckets:
        for place in bucket.placements:
            parameter = plan.parameters[place.parameter]
            kind = (bucket.group, bucket.dtype, bucket.device)
            assert (parameter.group, parameter.dtype, parameter.device) == kind
        assert bucket.item_bytes == ITEM_BYTES[bucket.dtype]
    placed = sorted(place.parameter for bucket in plan.buckets for place in bucket.placements)
    assert placed == list(range(len(plan.parameters)))


@given(tables())
def test_a_bucket_holds_one_stage_of_a_pipeline(spec):
    """No bucket, and so no partition, belongs to two stages."""
    stages = spec.stages or (0,) * len(spec.parameters)
    for bucket in Plan(spec, 3).buckets:
        assert len({stages[place.parameter] for place in bucket.placements}) == 1


@given(tables())
def test_a_bucket_is_full_or_holds_one_parameter(spec):
    """A bucket takes parameters up to its size; two that follow each other would not fit into one."""
    plan = Plan(spec, 1)
    limit = max(spec.buckets.bucket_bytes, spec.buckets.first_bucket_bytes)
    for bucket in plan.buckets:
        sizes = [place.numel * bucket.item_bytes for place in bucket.placements]
        assert sum(sizes) <= limit or sum(size > 0 for size in sizes) == 1


def test_the_first_bucket_is_small():
    """Backward fills a bucket of `first_bucket_bytes` first, so that it leaves early."""
    parameters = [flat(MIB // 8, f"p{index}") for index in range(8)]  # 512 KiB each
    plan = Plan(table(*parameters, buckets=BucketOptions(bucket_bytes=2 * MIB)), 1)
    members = [[place.parameter for place in bucket.placements] for bucket in plan.buckets]
    assert members == [[7, 6], [5, 4, 3, 2], [1, 0]]


@given(PLANS)
@example(UNEVEN)
@example(SHORT)
def test_numbers_of_partitions_and_shards_agree(plan):
    """`partition(i)` has number i, and the shards' partitions are all partitions, each on its shard."""
    everything = partitions(plan)
    assert [partition.index for partition in everything] == list(range(plan.num_partitions))
    by_shard = [list(plan.partitions_of_shard(shard)) for shard in range(plan.num_shards)]
    for shard, held in enumerate(by_shard):
        assert held == [partition for partition in everything if partition.shard == shard]
    assert [partition.bucket for partition in everything] == sorted(
        bucket.index for bucket in plan.buckets for _ in range(bucket.num_partitions)
    )


@pytest.mark.parametrize("index", [-1, SHORT.num_partitions])
def test_there_is_no_partition_beyond_the_last(index):
    """A number from a peer is checked: the error says how many there are."""
    with pytest.raises(IndexError, match=f"partition {index}; the plan has {SHORT.num_partitions}"):
        SHORT.partition(index)


@given(tables(), st.integers(1, 7))
def test_equal_input_gives_the_same_plan(spec, num_shards):
    """Two ends that build it from equal tables agree."""
    copy = replace(spec, parameters=tuple(replace(parameter) for parameter in spec.parameters))
    one, other = Plan(spec, num_shards), Plan(copy, num_shards)
    assert (one.parameters, one.buckets) == (other.parameters, other.buckets)
    assert partitions(one) == partitions(other)


def work(numel: int, num_shards: int) -> tuple[int, int]:
    """Function calls and peak bytes of making a plan and asking it for a few partitions."""
    spec = table(*(flat(numel // 4, f"p{index}") for index in range(4)))
    calls = 0

    def count(_frame, event, _arg):
        nonlocal calls
        calls += event == "call"

    tracemalloc.start()
    sys.setprofile(count)
    try:
        plan = Plan(spec, num_shards)
        for index in (0, plan.num_partitions // 2, plan.num_partitions - 1):
            plan.pieces(plan.partition(index))
        return calls, tracemalloc.get_traced_memory()[1]
    finally:
        sys.setprofile(None)
        tracemalloc.stop()


def test_a_plan_of_a_trillion_elements_costs_no_more_than_a_small_one():
    """Work grows with the number of parameters and never with their sizes: counted calls, peak bytes."""
    work(10**8, 8)  # what is imported or cached once
    small_calls, _ = work(10**8, 8)
    calls, peak_bytes = work(10**12, 4096)
    assert calls == small_calls
    assert peak_bytes < 100_000
