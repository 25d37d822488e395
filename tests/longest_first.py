"""A plugin of pytest: files of long tests come first, so that no core waits for the last one.

Under xdist each process begins with a slice of all tests, and who has ended takes over from the end of
another's. So the beginning of each slice gets its part of the long files, each of them whole, since its tests
share what its fixtures have started. All other tests stay in the order that they have.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

# File -> seconds of all its tests on two idle cores, to 5 s.
LONG_S = {
    "tests/integration/test_compare.py": 50,
    "tests/integration/test_bench.py": 45,
    "tests/deploy/test_executed.py": 45,
    "tests/faults/test_chaos.py": 50,
    "tests/integration/test_acceptance.py": 45,
    "tests/faults/test_points.py": 40,
    "tests/faults/test_hung_shards.py": 35,
    "tests/integration/test_frameworks.py": 35,
    "tests/integration/test_launch.py": 30,
    "tests/typing/test_user_script.py": 30,
    "tests/integration/test_demo_examples.py": 20,
    "tests/faults/test_quick_start.py": 15,
    "tests/deploy/test_slurm.py": 15,
    "tests/unit/docs/test_quick_start.py": 15,
    "tests/integration/test_top.py": 15,
}


class Item(Protocol):
    """Of pytest."""

    @property
    def nodeid(self) -> str: ...


ItemT = TypeVar("ItemT", bound=Item)


def pytest_collection_modifyitems(items: list[Item]) -> None:
    """Every process of a run comes to the same order."""
    items[:] = ordered(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def file_of(item: Item) -> str:
    """Where a test is."""
    return item.nodeid.partition("::")[0]


def ordered(items: Sequence[ItemT], num_slices: int) -> list[ItemT]:
    """All of them, as long as slices are as long as xdist makes them, each with its part of the long ones."""
    parts = _parts({file_of(item) for item in items} & LONG_S.keys(), num_slices)
    long = [[item for item in items if file_of(item) in part] for part in parts]
    rest = [item for item in items if file_of(item) not in LONG_S]
    result: list[ItemT] = []
    for number, first in enumerate(long):
        size = (len(items) - len(result)) // (num_slices - number)
        fill = max(0, size - len(first))
        result += [*first, *rest[:fill]]
        rest = rest[fill:]
    return result + rest


def _parts(files: Iterable[str], count: int) -> list[set[str]]:
    """The files, so that all parts take about as long: the next one goes to who has least."""
    parts: list[set[str]] = [set() for _ in range(count)]
    for file in sorted(files, key=lambda file: (-LONG_S[file], file)):
        min(parts, key=lambda part: sum(LONG_S[it] for it in part)).add(file)
    return parts
