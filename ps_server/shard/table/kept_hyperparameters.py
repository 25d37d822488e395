"""The last hyper-parameters that each worker has sent for a table: a push refers to one of them by number."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from ps_wire.spec.table import Hyperparameters

KEPT_HYPERPARAMETERS = 16  # per worker; a push refers to one of its last few


class KeptHyperparameters:
    """The numbered hyper-parameters of each worker of a table. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, OrderedDict[int, Hyperparameters]] = {}

    def keep(self, worker: int, number: int, hyper: Hyperparameters) -> None:
        """Keeps them; the worker's oldest go when there are too many."""
        with self._lock:
            kept = self._kept.setdefault(worker, OrderedDict())
            kept[number] = hyper
            while len(kept) > KEPT_HYPERPARAMETERS:
                kept.popitem(last=False)

    def get(self, worker: int, number: int) -> Hyperparameters | None:
        """Those of this number, None if they are not kept."""
        with self._lock:
            kept = self._kept.get(worker)
            return None if kept is None else kept.get(number)

    def dump(self) -> dict[int, dict[int, Hyperparameters]]:
        """Worker -> number -> what is kept, the oldest first."""
        with self._lock:
            return {worker: dict(kept) for worker, kept in self._kept.items()}

    def load(self, kept: Mapping[int, Mapping[int, Hyperparameters]]) -> None:
        """Takes over what `dump` gave."""
        for worker, own in kept.items():
            for number, hyper in sorted(own.items()):
                self.keep(worker, number, hyper)
