"""Statistics of rounds."""

from __future__ import annotations

import pytest

from ps_lab.bench.figures import Round, cpu_s_per_gb, summarize


def rounds(*seconds: float, cpu_s: float | None = 1.0) -> list[Round]:
    return [Round(seconds=value, cpu_s=cpu_s) for value in seconds]


def test_the_summary_is_of_sorted_times_and_its_p90_is_one_of_them() -> None:
    summary = summarize(rounds(*(float(value) for value in (7, 3, 1, 10, 2, 5, 4, 6, 8, 9))))
    assert summary.to_json() == {"min": 1.0, "median": 5.5, "p90": 9.0, "max": 10.0}


def test_one_round_is_its_own_summary() -> None:
    assert summarize(rounds(0.25)).to_json() == dict.fromkeys(("min", "median", "p90", "max"), 0.25)


def test_of_two_rounds_the_slower_one_is_the_p90() -> None:
    assert summarize(rounds(2.0, 1.0)).p90 == 2.0


def test_cpu_seconds_are_per_gb_of_all_rounds() -> None:
    assert cpu_s_per_gb(rounds(1.0, 1.0, 1.0, cpu_s=0.5), 250_000_000) == pytest.approx(2.0)


def test_unknown_cpu_seconds_stay_unknown() -> None:
    assert cpu_s_per_gb([*rounds(1.0), *rounds(1.0, cpu_s=None)], 1) is None
