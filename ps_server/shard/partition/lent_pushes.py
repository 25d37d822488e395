"""Pushes of one cell whose values are still read in their workers' memory.

A worker lends the memory of a push until the push's step has closed; from then on, or when the worker goes,
the memory is its own again. Not thread-safe: its cell has a lock. It must not know frames or weights.
"""

from __future__ import annotations

from ps_server.shard.partition.inputs import Contribution


class LentPushes:
    """The lent push of each worker, at most one."""

    __slots__ = ("_by_worker",)

    def __init__(self) -> None:
        self._by_worker: dict[int, Contribution] = {}

    def __bool__(self) -> bool:
        """Whether any memory is read."""
        return bool(self._by_worker)

    def note(self, contribution: Contribution) -> None:
        """The values of this push are read where they lie, in place of an older push's."""
        self._by_worker[contribution.worker] = contribution

    def is_lent(self, worker: int, step: int) -> bool:
        """Whether the memory of this push is still read."""
        lent = self._by_worker.get(worker)
        return lent is not None and lent.step == step

    def release_below(self, version: int) -> list[Contribution]:
        """Removes and returns the pushes of steps that have closed."""
        free = [lent for lent in self._by_worker.values() if lent.step < version]
        for lent in free:
            del self._by_worker[lent.worker]
        return free

    def release(self, worker: int, incarnation: int) -> None:
        """Removes the push of a worker that goes, if it is of this incarnation or an older one."""
        lent = self._by_worker.get(worker)
        if lent is not None and lent.incarnation <= incarnation:
            del self._by_worker[worker]
