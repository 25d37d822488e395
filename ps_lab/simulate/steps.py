"""The steps of a simulation, one row each, in columns: a million rows are 100 MB, not a GB of objects."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

WHOLE = ("worker", "incarnation", "step", "clock", "version_read", "tau", "gap", "dropped")
SECONDS = ("started_s", "ended_s", "compute_s", "push_s", "gate_s", "pull_s", "loss")


class StepTable:
    """Columns of equal length. Not thread-safe.

    Columns:
        worker, incarnation: who.
        step: of this incarnation, from 0 on.
        clock: of the worker when it pushed.
        tau: version staleness, the largest over partitions; -1 where the push was applied on none.
        version_read: of the weights that the gradient was computed on, on the partition of that tau.
        gap: clock gap after the push.
        dropped: partitions that dropped the push.
        started_s, ended_s: in virtual time; a step ends with its last weights.
        compute_s, push_s, gate_s, pull_s: of that time, on the partition whose weights came last.
        loss: of its batch; not a number without gradients.
    """

    def __init__(self) -> None:
        self._whole = {name: array("q") for name in WHOLE}
        self._seconds = {name: array("d") for name in SECONDS}
        columns: list[array[int] | array[float]] = [*self._whole.values(), *self._seconds.values()]
        self._appends: list[Callable[[Any], None]] = [column.append for column in columns]

    def __len__(self) -> int:
        return len(self._whole["worker"])

    def add(self, row: Sequence[float]) -> None:
        """One step: a value for each of `WHOLE` and then of `SECONDS`."""
        for append, value in zip(self._appends, row, strict=True):
            append(value)

    def whole(self, name: str) -> npt.NDArray[np.int64]:
        """A copy of a column of whole numbers, of shape (rows,)."""
        return np.array(self._whole[name], dtype=np.int64)

    def seconds(self, name: str) -> npt.NDArray[np.float64]:
        """A copy of a column of other numbers, of shape (rows,)."""
        return np.array(self._seconds[name], dtype=np.float64)
