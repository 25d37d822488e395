"""What all workers say alike of the data of a loader: the first says it, others are compared with it."""

from __future__ import annotations

import json
import math

import pytest

from ps_server.coordinator.epochs.agreed import MAX_FACTS, MAX_LOOPS, MAX_SUMS, MAX_TEXT, Agreed
from ps_server.coordinator.epochs.epoch_book import EpochBook
from ps_wire.errors import JobMismatch, UsageError


def test_what_differs_is_named_with_both_workers_both_values_and_the_remedy():
    agreed = Agreed()
    agreed.check(0, 1, {"seed": "3", "samples": "100"})
    agreed.check(0, 0, {"seed": "3", "samples": "100"})
    agreed.check(1, 0, {"seed": "4"})
    with pytest.raises(JobMismatch, match=r"loader 0 .* seed 5 on worker 2, and 3 on worker 1: .*same seed"):
        agreed.check(0, 2, {"seed": "5", "samples": "100"})
    with pytest.raises(JobMismatch, match=r"samples 50 on worker 2, and 100 on worker 1: .*whole dataset"):
        agreed.check(0, 2, {"seed": "3", "samples": "50", "data": "x"})
    agreed.check(2, 0, {"data": "x"})
    with pytest.raises(JobMismatch, match="data none on worker 2, and x on worker 0"):
        agreed.check(2, 2, {})


@pytest.mark.parametrize(
    "said", [{str(number): "" for number in range(MAX_FACTS + 1)}, {"seed": "1" * (MAX_TEXT + 1)}]
)
def test_what_is_kept_of_a_loader_is_bounded(said: dict[str, str]):
    with pytest.raises(UsageError, match="at most"):
        Agreed().check(0, 0, said)


def test_a_successor_compares_with_what_was_said_and_who_comes_after_all_have_gone_says_it_anew():
    shares = EpochBook()
    shares.agreed.check(0, 0, {"seed": "3"})
    successor = EpochBook()
    successor.load(json.loads(json.dumps(shares.dump())))
    with pytest.raises(JobMismatch):
        successor.agreed.check(0, 1, {"seed": "4"})
    successor.suspend()
    successor.agreed.check(0, 1, {"seed": "4"})


def test_sums_that_differ_are_said_once_a_loader_and_numbers_that_were_computed_elsewhere_are_alike():
    agreed = Agreed()
    assert agreed.compare(0, 1, [1.0, 2.0, math.nan, math.inf]) == ""
    assert agreed.compare(0, 0, [1.0000001, 2.0, math.nan, math.inf]) == ""
    said = agreed.compare(0, 2, [1.0, 2.1, math.nan, math.inf])
    assert "loader 0" in said
    assert "on worker 2 than on worker 1; if that is not meant, give every worker the whole dataset" in said
    assert agreed.compare(0, 3, [5.0]) == ""  # said once
    assert agreed.compare(1, 3, []) == ""
    assert agreed.compare(1, 0, [5.0]) == ""  # of another kind: that is refused by its fingerprint
    agreed.clear()
    assert agreed.compare(0, 2, [7.0]) == ""
    with pytest.raises(UsageError, match="at most"):
        agreed.compare(0, 0, [0.0] * (MAX_SUMS + 1))


def test_loops_of_other_lengths_are_said_once_a_loop_with_both_workers_and_both_ends():
    agreed = Agreed()
    assert agreed.compare_loop(0, 1, 10) == ""
    assert agreed.compare_loop(0, 0, 10) == ""
    assert agreed.compare_loop(1, 0, 15) == ""
    assert agreed.compare_loop(0, 2, 0) == ""  # of a release that does not say it
    said = agreed.compare_loop(0, 2, 12)
    assert "loop 0 over worker.epochs (the first is 0) ends with epoch 11 on worker 2" in said
    assert "with epoch 9 on worker 1; if that is not meant, give the same count on all" in said
    assert agreed.compare_loop(0, 3, 12) == ""  # said once
    assert "loop 1" in agreed.compare_loop(1, 1, 12)
    agreed.clear()
    assert agreed.compare_loop(0, 2, 12) == ""


def test_few_loops_are_kept():
    agreed = Agreed()
    assert agreed.compare_loop(MAX_LOOPS, 0, 1) == ""
    assert agreed.compare_loop(MAX_LOOPS, 1, 2) == ""
