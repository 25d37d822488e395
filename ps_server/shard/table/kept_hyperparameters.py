"""The last hyper-parameters that each rank of a worker has sent: its pushes refer to them by number."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from ps_wire.spec.table import Hyperparameters

KEPT_HYPERPARAMETERS = 16  # per rank of a worker; a push refers to one of its last few


class KeptHyperparameters:
    """The numbered hyper-parameters of each sender of a table: (worker, rank). Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, int], OrderedDict[int, Hyperparameters]] = {}

    def keep(self, sender: tuple[int, int], number: int, hyper: Hyperparameters) -> None:
        """Keeps them; the sender's oldest go when there are too many."""
        with self._lock:
            kept = self._kept.setdefault(sender, OrderedDict())
            kept[number] = hyper
            while len(kept) > KEPT_HYPERPARAMETERS:
                kept.popitem(last=False)

    def get(self, sender: tuple[int, int], number: int) -> Hyperparameters | None:
        """Those of this number, None if they are not kept."""
        with self._lock:
            kept = self._kept.get(sender)
            return None if kept is None else kept.get(number)

    def dump(self) -> dict[tuple[int, int], dict[int, Hyperparameters]]:
        """Sender -> number -> what is kept, the oldest first."""
        with self._lock:
            return {sender: dict(kept) for sender, kept in self._kept.items()}

    def load(self, kept: Mapping[tuple[int, int], Mapping[int, Hyperparameters]]) -> None:
        """Takes over what `dump` gave."""
        for sender, own in kept.items():
            for number, hyper in sorted(own.items()):
                self.keep(sender, number, hyper)
