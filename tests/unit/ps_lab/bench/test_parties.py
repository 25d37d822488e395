"""Rounds take turns."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ps_lab.bench.figures import Round
from ps_lab.bench.parties import WARM_UP_ROUNDS, interleave
from ps_lab.errors import BenchFailed


@dataclass
class Counter:
    """A party whose rounds take 1, 2, 3... seconds."""

    name: str
    log: list[str]
    fails_at: int = 0
    rounds: int = field(default=0)

    def round(self) -> Round:
        self.rounds += 1
        self.log.append(self.name)
        if self.rounds == self.fails_at:
            raise BenchFailed("hangs")
        return Round(seconds=float(self.rounds), cpu_s=None)


def test_each_party_has_a_turn_before_any_has_its_next() -> None:
    log: list[str] = []
    interleave([Counter(name, log) for name in "abc"], 2)
    assert log == ["a", "b", "c"] * (WARM_UP_ROUNDS + 2)


def test_the_first_rounds_of_each_are_dropped() -> None:
    kept = interleave([Counter("a", []), Counter("b", [])], 3)
    expected = [float(WARM_UP_ROUNDS + number) for number in (1, 2, 3)]
    assert {name: [item.seconds for item in rounds] for name, rounds in kept.items()} == {
        "a": expected,
        "b": expected,
    }


def test_every_round_is_reported() -> None:
    reported: list[int] = []
    log: list[str] = []
    interleave([Counter("a", log), Counter("b", log)], 1, on_round=lambda: reported.append(len(log)))
    assert reported == list(range(1, 2 * (WARM_UP_ROUNDS + 1) + 1))


def test_a_party_that_fails_ends_the_rounds_of_all() -> None:
    log: list[str] = []
    with pytest.raises(BenchFailed):
        interleave([Counter("a", log), Counter("b", log, fails_at=2), Counter("c", log)], 5)
    assert log == ["a", "b", "c", "a", "b"]
