"""The contiguous split whose most expensive stage costs least, against a search of all splits."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.errors import PipelineError
from ps_worker.pipeline.partition import cheapest, partition


def stages_of(cuts, blocks):
    return list(itertools.pairwise((*cuts, blocks)))


def largest(costs, cuts):
    return max(math.fsum(costs[begin:end]) for begin, end in stages_of(cuts, len(costs)))


def every_split(blocks, stages):
    for inner in itertools.combinations(range(1, blocks), stages - 1):
        yield (0, *inner)


@given(st.lists(st.floats(0, 1e6), min_size=12, max_size=12), st.integers(1, 4))
def test_no_split_has_a_cheaper_largest_stage(costs, stages):
    cuts = partition(costs, stages)
    assert cuts in set(every_split(12, stages))
    assert largest(costs, cuts) == min(largest(costs, split) for split in every_split(12, stages))


@given(st.lists(st.integers(0, 5), min_size=4, max_size=9), st.integers(1, 4))
def test_of_equal_splits_the_evenest_is_taken_and_of_those_the_first(costs, stages):
    """So all workers, and all runs, come to the same cuts."""

    def rank(split):
        sums = [math.fsum(costs[begin:end]) for begin, end in stages_of(split, len(costs))]
        return max(sums), sum(it * it for it in sums), split

    assert partition(costs, stages) == min(every_split(len(costs), stages), key=rank)


def test_one_block_a_stage():
    assert partition([3.0, 1.0, 2.0], 3) == (0, 1, 2)
    assert partition([3.0], 1) == (0,)


def test_more_stages_than_blocks_are_refused():
    with pytest.raises(PipelineError, match="5 stages need as many blocks, and the model has 4"):
        partition([1.0] * 4, 5)
    with pytest.raises(PipelineError, match="at least 1 stage, got 0"):
        partition([1.0], 0)


@pytest.mark.parametrize("cost", [-1.0, math.inf, math.nan])
def test_a_cost_that_is_none_is_refused(cost):
    with pytest.raises(PipelineError, match="the cost of block 1 must be >= 0 and finite"):
        partition([1.0, cost], 2)


def test_a_cost_may_depend_on_the_stage():
    """Stage 0 holds three micro-batches' activations, stage 1 two, stage 2 one."""

    def cost(begin, end, stage):
        return (end - begin) * (3 - stage)

    assert cheapest(cost, 6, 3) == (0, 1, 2), "3, 2 and 4"
