"""The last hyper-parameters that each rank of a worker has sent: its pushes refer to them by number.

What several have sent alike, as workers of one script do, is kept once. How many sets a table keeps is
bounded, so that what they take is reckoned when it is opened: they are of the form of those of its start.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from ps_wire.errors import MemoryLimitExceeded
from ps_wire.spec.table import MAX_TEXT, Hyperparameters, Value

KEPT_HYPERPARAMETERS = 16  # per rank of a worker; a push refers to one of its last few
LEAST_SETS = 2 * KEPT_HYPERPARAMETERS  # of a table: ranks and workers of one schedule are some steps apart
SETS_BYTES = 64 << 20  # of a table; above it, no more than `LEAST_SETS`
PAIR_BYTES = 160  # a name with a number, as Python keeps it: 93 to 154 bytes measured
NUMBER_BYTES = 32  # one more, of several
TEXT_BYTES = 4 * MAX_TEXT


def set_bytes(hyper: Hyperparameters) -> int:
    """The memory of one set of this form, at most."""
    return sum(_value_bytes(value) for group in hyper.groups for _, value in group)


def most_sets(start: Hyperparameters, num_workers: int) -> int:
    """The sets that a table keeps at most, with these at its start.

    All that workers with schedules of their own have sent last, or what takes `SETS_BYTES`.
    """
    own = KEPT_HYPERPARAMETERS * (num_workers + 1)
    return min(own, max(LEAST_SETS, SETS_BYTES // max(set_bytes(start), 1)))


def _value_bytes(value: Value) -> int:
    if isinstance(value, tuple):
        return PAIR_BYTES + NUMBER_BYTES * len(value)
    return PAIR_BYTES + (TEXT_BYTES if isinstance(value, str) else 0)


@dataclass(slots=True)
class _Set:
    """One set, and how many numbers of senders mean it."""

    hyper: Hyperparameters
    uses: int = 0


class KeptHyperparameters:
    """The numbered hyper-parameters of each sender of a table: (worker, rank). Thread-safe."""

    def __init__(self, most: int = LEAST_SETS) -> None:
        """Keeps at most so many sets that differ."""
        self._most = most
        self._lock = threading.Lock()
        self._sets: dict[Hyperparameters, _Set] = {}
        self._kept: dict[tuple[int, int], OrderedDict[int, _Set]] = {}

    def keep(self, sender: tuple[int, int], number: int, hyper: Hyperparameters) -> None:
        """Keeps them; the sender's oldest go when there are too many.

        Raises:
            MemoryLimitExceeded: senders have sent too many that differ.
        """
        with self._lock:
            self._keep(sender, number, hyper)
            if len(self._sets) > self._most:
                self._let_go(self._kept[sender].pop(number))
                raise MemoryLimitExceeded(
                    f"workers of this table have sent over {self._most} hyper-parameters that differ, and "
                    "pushes may still refer to them: no more are kept"
                )

    def get(self, sender: tuple[int, int], number: int) -> Hyperparameters | None:
        """Those of this number, None if they are not kept."""
        with self._lock:
            own = self._kept.get(sender)
            kept = None if own is None else own.get(number)
            return None if kept is None else kept.hyper

    def forget(self, worker: int) -> None:
        """All ranks of a worker have gone: no push refers to what they have sent."""
        with self._lock:
            for sender in [sender for sender in self._kept if sender[0] == worker]:
                for kept in self._kept.pop(sender).values():
                    self._let_go(kept)

    def dump(self) -> dict[tuple[int, int], dict[int, Hyperparameters]]:
        """Sender -> number -> what is kept, the oldest first."""
        with self._lock:
            return {
                sender: {number: it.hyper for number, it in kept.items()}
                for sender, kept in self._kept.items()
            }

    def load(self, kept: Mapping[tuple[int, int], Mapping[int, Hyperparameters]]) -> None:
        """Takes over what `dump` gave."""
        with self._lock:
            for sender, own in kept.items():
                for number, hyper in sorted(own.items()):
                    self._keep(sender, number, hyper)

    def _keep(self, sender: tuple[int, int], number: int, hyper: Hyperparameters) -> None:
        own = self._kept.setdefault(sender, OrderedDict())
        if number in own:
            self._let_go(own.pop(number))
        elif len(own) >= KEPT_HYPERPARAMETERS:
            self._let_go(own.popitem(last=False)[1])
        own[number] = kept = self._sets.setdefault(hyper, _Set(hyper))
        kept.uses += 1

    def _let_go(self, kept: _Set) -> None:
        kept.uses -= 1
        if not kept.uses:
            del self._sets[kept.hyper]
