"""The steps at which workers begin a job's tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class FirstSteps:
    """The first steps of workers that come when a table starts: their own step of a cut, else the newest.

    Not thread-safe.

    Attributes:
        newest: table -> the newest clock that shards have told.
    """

    newest: dict[int, int] = field(default_factory=dict)
    _of_cut: dict[tuple[int, int], int] = field(default_factory=dict)  # (table, worker)

    @property
    def step(self) -> int:
        """The newest over all tables, for people."""
        return max(self.newest.values(), default=0)

    def of(self, worker: int, table: int) -> int:
        """The first step of a worker in a table."""
        return self._of_cut.get((table, worker), self.newest.get(table, 0))

    def saw(self, clocks: Mapping[int, int]) -> None:
        """Shards have told clocks, by table."""
        for table, clock in clocks.items():
            self.newest[table] = max(self.newest.get(table, 0), clock)

    def restore(self, cut: Mapping[int, Mapping[int, int]]) -> None:
        """The job goes on from a cut: table -> worker -> its first step after it."""
        self.newest = {table: max(clocks.values(), default=0) for table, clocks in cut.items()}
        self._of_cut = {
            (table, worker): clock for table, clocks in cut.items() for worker, clock in clocks.items()
        }

    def clear(self) -> None:
        """The job's state is given up."""
        self.newest.clear()
        self._of_cut.clear()

    def dump(self) -> dict[str, Any]:
        """All of it, for JSON: as pairs, since keys are no texts."""
        return {
            "clocks": [[table, step] for table, step in self.newest.items()],
            "_first_steps": [[list(key), step] for key, step in self._of_cut.items()],
        }

    def load(self, facts: Mapping[str, Any]) -> None:
        """Goes on with what was dumped."""
        self.newest = dict(facts["clocks"])
        self._of_cut = {(table, worker): step for (table, worker), step in facts["_first_steps"]}
