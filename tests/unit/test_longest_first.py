"""Files of long tests are at the beginning of each slice that xdist makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.longest_first import LONG_S, file_of, ordered

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Named:
    nodeid: str


def named(file: str, count: int) -> list[Named]:
    return [Named(f"{file}::test_{number}") for number in range(count)]


SHORT = [test for number in range(40) for test in named(f"tests/unit/test_{number}.py", 10)]
LONG = [test for file in LONG_S for test in named(file, 3)]
ITEMS = [*SHORT[:200], *LONG, *SHORT[200:]]


def slices(items: list[Named], count: int) -> list[list[Named]]:
    """As xdist's `worksteal` makes them."""
    left, result = list(items), []
    for number in range(count):
        size = len(left) // (count - number)
        result.append(left[:size])
        left = left[size:]
    return result


def test_the_files_are_there():
    assert [file for file in LONG_S if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_each_slice_begins_with_whole_long_files_that_take_about_as_long(count: int):
    seconds, seen = [], set()
    for one in slices(ordered(ITEMS, count), count):
        first = [item for item in one if item in LONG]
        assert one[: len(first)] == first
        files = {file_of(item) for item in first}
        assert len(first) == 3 * len(files)
        assert not files & seen
        seen |= files
        seconds.append(sum(LONG_S[file] for file in files))
    assert seen == LONG_S.keys()
    assert max(seconds) - min(seconds) <= max(LONG_S.values())


@pytest.mark.parametrize("items", [ITEMS, LONG, SHORT, LONG[:2], []], ids=len)
def test_nothing_is_lost_or_twice_and_short_ones_keep_their_order(items: list[Named]):
    found = ordered(items, 3)
    assert sorted(found, key=str) == sorted(items, key=str)
    assert [item for item in found if item in SHORT] == [item for item in items if item in SHORT]
