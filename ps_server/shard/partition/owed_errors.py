"""Errors of one cell that workers have not heard yet: a push that was not taken as it was.

The worker is told at what it does next. Not thread-safe: its cell has a lock. It must not know why a push was
not taken.
"""

from __future__ import annotations

from collections.abc import Mapping

from ps_wire.errors import PsError


class OwedErrors:
    """The error of each worker, with the incarnation that it is for."""

    __slots__ = ("_by_worker",)

    def __init__(self) -> None:
        self._by_worker: dict[int, tuple[int, PsError]] = {}

    def owe(self, worker: int, incarnation: int, error: PsError) -> None:
        """An error for this incarnation, in place of an older one."""
        self._by_worker[worker] = incarnation, error

    def of(self, worker: int, incarnation: int) -> PsError | None:
        """The error that this incarnation is to be told, if there is one."""
        failed, error = self._by_worker.get(worker, (incarnation, None))
        return error if failed == incarnation else None

    def check(self, worker: int, incarnation: int, step: int | None = None) -> None:
        """Raises what this incarnation is owed, but for a push of the same step, which is a repetition."""
        error = self.of(worker, incarnation)
        if error is not None and step != error.facts["step"]:
            raise error

    def dump(self) -> dict[int, tuple[int, PsError]]:
        """Worker -> (incarnation, error)."""
        return dict(self._by_worker)

    def load(self, owed: Mapping[int, tuple[int, PsError]]) -> None:
        """Takes over what `dump` gave."""
        self._by_worker.update(owed)
