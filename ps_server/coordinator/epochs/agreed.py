"""Facts about a loader's data, and about loops over epochs, that all workers of a job state alike. Pure.

Each of them draws the order of an epoch by itself, and takes its part of it: with another seed, or of other
data, parts overlap and samples are missing, and no error comes of it. Who has fewer epochs than the others
ends before them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ps_wire.errors import JobMismatch, UsageError
from ps_wire.text import one_line

MAX_FACTS = 8  # of a loader
MAX_TEXT = 80  # characters of a name, or of a value
MAX_SUMS = 8  # of a loader
MAX_LOOPS = 100  # of a script
TOLERANCE = 1e-3  # of sums: workers may have computed the same data with other bits
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
    """The facts that the first worker has stated about each loader and each loop; not thread-safe.

    Sums and loops are not handed over: a successor compares them with what it hears first.
    """

    _facts: dict[int, tuple[int, dict[str, str]]] = field(default_factory=dict)  # loader -> who, and what
    _sums: dict[int, tuple[int, Sequence[float]]] = field(default_factory=dict)  # likewise
    _warned: set[int] = field(default_factory=set)  # loaders of which somebody was told that sums differ
    _loops: dict[int, tuple[int, int]] = field(default_factory=dict)  # loop -> who, and where it ends there
    _loops_warned: set[int] = field(default_factory=set)

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

    def compare(self, loader: int, worker: int, sums: Sequence[float]) -> str:
        """Says for all workers, once a loader, where its data seems to be another one on a worker.

        It is no error: whoever draws its own random data, or computes it in another way, may mean it.

        Args:
            loader: its number.
            worker: who says it.
            sums: of rows of its data.

        Returns:
            A line that names both workers and the remedy; nothing where sums are about the same.

        Raises:
            UsageError: no worker of ours says so much.
        """
        if len(sums) > MAX_SUMS:
            raise UsageError(f"{SAID_OF} {loader}: at most {MAX_SUMS} sums are taken")
        first, known = self._sums.setdefault(loader, (worker, tuple(sums)))
        if loader in self._warned or all(map(_alike, sums, known)):
            return ""
        self._warned.add(loader)
        return (
            f"loader {loader} (the first is 0) has other numbers in its data on worker {worker} than on "
            f"worker {first}; if that is not meant, {REMEDIES['data']}"
        )

    def compare_loop(self, loop: int, worker: int, stop: int) -> str:
        """Says for all workers, once a loop, where it has another number of epochs on a worker.

        It is no error: a worker may leave its job earlier than the others.

        Args:
            loop: of a worker's loops over epochs, from 0; only the first `MAX_LOOPS` are compared.
            worker: whose loop it is.
            stop: the epoch before which it ends there; 0: not known.

        Returns:
            A line that names both workers and the remedy; nothing where they are alike.
        """
        if not stop or loop >= MAX_LOOPS:
            return ""
        first, known = self._loops.setdefault(loop, (worker, stop))
        if stop == known or loop in self._loops_warned:
            return ""
        self._loops_warned.add(loop)
        return (
            f"loop {loop} over worker.epochs (the first is 0) ends with epoch {stop - 1} on worker {worker}, "
            f"and with epoch {known - 1} on worker {first}; if that is not meant, give the same count on all"
        )

    def clear(self) -> None:
        """All workers ask anew."""
        self._facts.clear()
        self._sums.clear()
        self._warned.clear()
        self._loops.clear()
        self._loops_warned.clear()

    def dump(self) -> list[list[Any]]:
        """All of it, for JSON."""
        return [[loader, worker, said] for loader, (worker, said) in self._facts.items()]

    def load(self, facts: Iterable[Any]) -> None:
        """Goes on with what was dumped."""
        self._facts = {loader: (worker, said) for loader, worker, said in facts}


def _alike(one: float, other: float) -> bool:
    """Also where both are not a number."""
    return math.isclose(one, other, rel_tol=TOLERANCE) or (math.isnan(one) and math.isnan(other))


def _rank(name: str) -> int:
    """Ranks a fact: what explains others comes first, as a length does before a fingerprint."""
    return list(REMEDIES).index(name) if name in REMEDIES else len(REMEDIES)
