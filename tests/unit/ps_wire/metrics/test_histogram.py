"""A histogram counts each value in one bucket, whose bound it does not exceed."""

from __future__ import annotations

import pytest

from ps_wire.metrics.histogram import SECONDS, STEPS, UPDATES, Histogram


def test_a_value_is_counted_where_the_bound_is_the_first_not_below_it():
    it = Histogram((1, 3))
    for value in (0, 1, 1.5, 3, 4):
        it.count(value)
    assert it.counts == [2, 2, 1]
    assert (it.number, it.total) == (5, 9.5)


def test_histograms_of_the_same_bounds_add_up():
    one, other = Histogram((1,)), Histogram((1,))
    one.count(0, 3)
    other.count(7, 2)
    one.add(other)
    assert (one.counts, one.total) == ([3, 2], 14)
    assert other.counts == [0, 2]


def test_counts_by_value_make_the_same_histogram_as_the_values():
    it = Histogram.of(UPDATES, {0: 4, 5: 2})
    assert (it.number, it.total) == (6, 10)
    assert it.counts[UPDATES.index(0)] == 4
    assert it.counts[UPDATES.index(6)] == 2


@pytest.mark.parametrize("bounds", [UPDATES, STEPS, SECONDS])
def test_bounds_ascend(bounds):
    assert list(bounds) == sorted(set(bounds))
