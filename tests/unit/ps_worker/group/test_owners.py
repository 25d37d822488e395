"""Each partition has one owner, and owners are balanced by bytes over the whole table."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_worker.group.owners import owners_of


@given(st.lists(st.integers(0, 8 << 20)), st.integers(1, 9))
def test_no_rank_has_more_than_its_part_and_one_partition(sizes: list[int], ranks: int) -> None:
    owners = owners_of(sizes, ranks)

    loads = Counter[int]()
    for size, owner in zip(sizes, owners, strict=True):
        loads[owner] += size
    assert len(owners) == len(sizes)
    assert set(owners) <= set(range(ranks))
    assert max(loads.values(), default=0) <= sum(sizes) / ranks + max(sizes, default=0)


def test_partitions_of_one_size_go_round_and_the_small_ones_level_what_is_left() -> None:
    assert owners_of([1, 8, 8, 8, 1, 8, 8, 8, 1], 2) == (0, 0, 1, 0, 1, 1, 0, 1, 0)
    assert owners_of([8] * 6, 3) == (0, 1, 2, 0, 1, 2)
    assert owners_of([1, 1, 8, 1, 1], 2) == (1, 1, 0, 1, 1)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_model_of_many_partitions_is_shared_out_to_the_percent(ranks: int) -> None:
    sizes = [2 << 20] * 400 + [300_000] * 7

    owners = owners_of(sizes, ranks)

    loads = [
        sum(size for size, owner in zip(sizes, owners, strict=True) if owner == it) for it in range(ranks)
    ]
    assert max(loads) <= 1.01 * sum(sizes) / ranks
