"""Clipping by the global norm: steps of one table that wait, on one shard, for the scale they close with.

A step is complete on all cells of a shard; their sums of squares are added in partition order, and over
shards in shard order (`Ballots`), so the scale has the same bits in every run. It must not know cells,
orders or threads beyond its lock, which nothing else is taken under.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from ps_wire.spec.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A shard's part of the norm of one step's mean gradient.

    Attributes:
        job: name.
        table: number in the job.
        opening: number of the order that opened the table: a table that is made again has another.
        step: that is complete on all partitions of the shard.
        squares: sum of the squares, in float64.
        membership_epoch: of the membership with which it was computed.
    """

    job: str
    table: int
    opening: int
    step: int
    squares: float
    membership_epoch: int = 0


def coefficient(max_norm: float, squares: float) -> float:
    """The factor of `torch.nn.utils.clip_grad_norm_` for gradients whose squares have this sum."""
    norm = math.sqrt(squares) if squares >= 0.0 else math.nan
    scale = max_norm / (norm + 1e-6)
    return min(scale, 1.0)  # in this order a NaN stays one, as in torch


def holders(plan: Plan) -> tuple[int, ...]:
    """Shards that hold a part of the table: the norm of a step is theirs."""
    return tuple(shard for shard in range(plan.num_shards) if plan.slice_bytes(shard))


class Clipping:
    """Sums of squares by step and cell. Thread-safe."""

    def __init__(self, num_cells: int) -> None:
        self._num_cells = num_cells
        self._squares: dict[int, dict[int, float]] = {}
        self._reported = -1
        self._membership_epoch = 0
        self._lock = threading.Lock()

    def complete(self, step: int, index: int, squares: float) -> None:
        """A step is complete on the cell of partition `index`."""
        with self._lock:
            self._squares.setdefault(step, {})[index] = squares

    def reopen(self, membership_epoch: int) -> None:
        """Members have gone: steps that wait for their scale are looked at again, in this epoch.

        What was taken before is of the epoch before, whenever it is reported.
        """
        with self._lock:
            self._membership_epoch = membership_epoch
            for step in self._squares:
                self._reported = min(self._reported, step - 1)
            self._squares.clear()

    @property
    def membership_epoch(self) -> int:
        """Of the membership with which norms are computed."""
        with self._lock:
            return self._membership_epoch

    def poll(self) -> tuple[int, float, int] | None:
        """A step that is complete on all cells, with its sum of squares and epoch; each comes out once."""
        with self._lock:
            found = self._undecided()
            if found is None or found[0] <= self._reported:
                return None
            self._reported = found[0]
            return found

    def undecided(self) -> tuple[int, float, int] | None:
        """The first step that is complete on all cells and not decided, as `poll` gives it."""
        with self._lock:
            return self._undecided()

    def _undecided(self) -> tuple[int, float, int] | None:
        for step, squares in sorted(self._squares.items()):
            if len(squares) == self._num_cells:
                return step, sum(squares[index] for index in sorted(squares)), self._membership_epoch
        return None

    def decided(self, step: int) -> bool:
        """A step has its scale; False if it does not wait for one."""
        with self._lock:
            squares = self._squares.get(step, {})
            if len(squares) < self._num_cells:
                return False
            del self._squares[step]
            return True
