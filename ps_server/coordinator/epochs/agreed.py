"""Facts about a loader's data that all workers of a job must state alike. Pure.

Each of them draws the order of an epoch by itself, and takes its part of it: with another seed, or of other
data, parts overlap and samples are missing, and no error comes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ps_wire.errors import JobMismatch, UsageError
from ps_wire.text import one_line

MAX_FACTS = 8  # of a loader
MAX_TEXT = 80  # characters of a name, or of a value
SAID_OF = "the data of loader"
REMEDIES = {
    "shuffle": "all workers take parts of one order: give the same shuffle on all",
    "seed": "all workers draw one order and take parts of it: give the same seed on all",
    "samples": "give every worker the whole dataset, not a part of it: the loader takes this worker's part",
    "data": "give every worker the whole dataset, not a part of it: the loader takes this worker's part",
    "batch_size": "under bsp all workers get equally many batches of an epoch: give the same size on all",
    "drop_last": "under bsp all workers get equally many batches of an epoch: give the same drop_last on all",
}


@dataclass(slots=True)
class Agreed:
    """The facts that the first worker has stated about each loader; not thread-safe."""

    _facts: dict[int, tuple[int, dict[str, str]]] = field(default_factory=dict)  # loader -> who, and what

    def check(self, loader: int, worker: int, said: Mapping[str, str]) -> None:
        """Compares what a worker says of the data of a loader with what was said first.

        Raises:
            JobMismatch: it is not; both workers, both values and the remedy are named.
            UsageError: no worker of ours says so much.
        """
        if len(said) > MAX_FACTS or any(len(text) > MAX_TEXT for item in said.items() for text in item):
            raise UsageError(
                f"{SAID_OF} {loader}: at most {MAX_FACTS} values of {MAX_TEXT} characters are taken"
            )
        first, known = self._facts.setdefault(loader, (worker, dict(said)))
        for name in sorted(known.keys() | said.keys(), key=_rank):
            mine, other = said.get(name, "none"), known.get(name, "none")
            if mine != other:
                raise JobMismatch(
                    f"loader {loader} (the first is 0) has {one_line(name)} {one_line(mine)} "
                    f"on worker {worker}, and {one_line(other)} on worker {first}"
                    + (f": {REMEDIES[name]}" if name in REMEDIES else ""),
                    expected=other,
                    got=mine,
                )

    def clear(self) -> None:
        """All workers ask anew."""
        self._facts.clear()

    def dump(self) -> list[list[Any]]:
        """All of it, for JSON."""
        return [[loader, worker, said] for loader, (worker, said) in self._facts.items()]

    def load(self, facts: Iterable[Any]) -> None:
        """Goes on with what was dumped."""
        self._facts = {loader: (worker, said) for loader, worker, said in facts}


def _rank(name: str) -> int:
    """Ranks a fact: what explains others comes first, as a length does before a fingerprint."""
    return list(REMEDIES).index(name) if name in REMEDIES else len(REMEDIES)
