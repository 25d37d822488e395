"""The statistics of paired runs, against published tables and against scipy where it is installed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_lab.compare.statistics import difference, holm, interval, ratio, t_quantile, t_tail


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # Two-sided 95 %, NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2
    [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (29, 2.045), (100, 1.984)],
)
def test_quantiles_are_those_of_the_table(degrees, quantile):
    assert t_quantile(0.95, degrees) == pytest.approx(quantile, abs=6e-4)


def test_one_and_two_degrees_have_closed_forms():
    """Cauchy's distribution, and t / sqrt(2 + t^2)."""
    for t in (0.0, 0.1, 1.0, 3.0, 40.0):
        assert t_tail(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-12)
        assert t_tail(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-11)


@given(
    t=st.floats(-60, 60),
    degrees=st.integers(1, 3000),
)
def test_the_tail_is_scipys(t, degrees):
    scipy = pytest.importorskip("scipy.stats")
    assert t_tail(t, degrees) == pytest.approx(2 * scipy.t.sf(abs(t), degrees), rel=1e-7, abs=1e-300)


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=5, max_size=20))
def test_a_ratio_is_scipys_paired_test_of_the_logarithms(pairs):
    scipy = pytest.importorskip("scipy.stats")
    logs = [math.log(one) - math.log(other) for one, other in pairs]
    spread = max(logs) - min(logs)
    if spread < 1e-6:
        return
    found = ratio(pairs)
    test = scipy.ttest_1samp(logs, 0.0)
    low, high = test.confidence_interval(0.95)
    assert found.p == pytest.approx(test.pvalue, rel=1e-6, abs=1e-12)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((low, high), abs=1e-7)


def test_students_own_example():
    """Student 1908, the sleep data of Cushny and Peebles: a difference of 1.58, t = 4.0621 on 9 degrees."""
    first = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
    second = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)
    found = difference(list(zip(second, first, strict=True)))
    assert found.value == pytest.approx(1.58)
    assert found.p == pytest.approx(0.002833, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-6)


def test_a_ratio_does_not_depend_on_who_is_first():
    pairs = [(1.0, 2.0), (1.1, 2.0), (0.9, 2.1), (1.0, 1.8), (1.2, 2.2)]
    one, other = ratio(pairs), ratio([(b, a) for a, b in pairs])
    assert one.value * other.value == pytest.approx(1.0)
    assert one.low * other.high == pytest.approx(1.0)
    assert one.p == pytest.approx(other.p)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_fewer_than_five_pairs_are_no_test(count):
    """They have an effect and its range."""
    found = ratio([(1.0 + index, 2.0) for index in range(count)])
    assert found.p is None
    assert (found.low, found.high) == pytest.approx((0.5, (1.0 + count - 1) / 2))
    assert found.pairs == count


def test_pairs_that_are_all_alike():
    assert ratio([(1.0, 1.0)] * 5).p == 1.0
    assert ratio([(1.0, 2.0)] * 5).p == 0.0
    assert interval([3.0] * 5) == (3.0, 3.0, 3.0)


def test_holm_is_his():
    """The adjusted values of R's p.adjust for the same numbers."""
    assert holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx((0.04, 0.06, 0.06, 0.06))
    assert holm([0.04, 0.001, 0.5]) == pytest.approx((0.08, 0.003, 0.5))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


@given(st.lists(st.floats(0, 1), max_size=20))
def test_holm_never_makes_smaller_and_keeps_the_order(p_values):
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    by_p = sorted(zip(p_values, adjusted, strict=True))
    assert [q for _, q in by_p] == sorted(q for _, q in by_p)


def test_two_equal_parties_differ_no_more_often_than_said():
    """Of 400 comparisons of nothing with nothing, about one in 20 is below 0.05."""
    import random  # noqa: PLC0415

    draw = random.Random(4)
    found = [
        ratio([(math.exp(draw.gauss(0, 0.1)), math.exp(draw.gauss(0, 0.1))) for _ in range(5)]).p
        for _ in range(400)
    ]
    assert 8 <= sum(p < 0.05 for p in found) <= 34
