"""Laws of the summary of version staleness."""

import math

from hypothesis import given
from hypothesis import strategies as st

from ps_wire.spec.staleness import Staleness, merge_counts, summarize

histograms = st.dictionaries(st.integers(0, 200), st.integers(0, 50), max_size=20)


def expanded(counts: dict[int, int]) -> list[int]:
    return sorted(tau for tau, count in counts.items() for _ in range(count))


@given(histograms)
def test_a_summary_is_that_of_the_single_pushes(counts: dict[int, int]) -> None:
    pushes = expanded(counts)
    summary = summarize(counts)
    if not pushes:
        assert summary == Staleness()
        return
    assert summary.pushes == len(pushes)
    assert math.isclose(summary.mean, sum(pushes) / len(pushes))
    assert summary.max == pushes[-1]
    assert summary.p99 == pushes[math.ceil(len(pushes) * 0.99 - 1e-9) - 1]


@given(st.lists(histograms, max_size=4))
def test_merging_histograms_merges_their_pushes(parts: list[dict[int, int]]) -> None:
    merged = merge_counts(parts)
    assert expanded(merged) == sorted(tau for part in parts for tau in expanded(part))
    assert list(merged) == sorted(merged)


def test_bsp_has_no_staleness() -> None:
    assert summarize({0: 88}) == Staleness(pushes=88, mean=0.0, p99=0, max=0)


def test_one_late_push_in_a_thousand_shows_in_max_and_not_in_p99() -> None:
    assert summarize({3: 999, 40: 1}) == Staleness(pushes=1000, mean=3.037, p99=3, max=40)
