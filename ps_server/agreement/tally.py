"""Backup workers: who has pushed the open step on all partitions of one table on one shard.

Each cell says how it stands whenever that has changed; counts over cells are kept, so that a push costs no
look at other cells. It must not know cells, orders or tensors. `_lock` guards it; nothing else is taken
under it.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from ps_server.agreement.attendance import Attendance, Late, suffices


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStanding:
    """The workers that have pushed the open step of one partition.

    Attributes:
        step: the open one.
        here: have pushed it.
        members: live workers whose step it is.
        ahead: whether live workers wait for a later step.
        late: workers that wait to catch up.
    """

    step: int
    here: frozenset[int] = frozenset()
    members: frozenset[int] = frozenset()
    ahead: bool = False
    late: frozenset[Late] = frozenset()


class StepTally:
    """The tally of the open step: who has pushed it on all partitions of one table here. Thread-safe."""

    def __init__(self, num_cells: int, backup: int) -> None:
        self._num_cells = num_cells
        self._backup = backup
        self._standings: dict[int, CellStanding] = {}
        self._steps: Counter[int] = Counter()
        self._here: Counter[int] = Counter()  # cells that have a worker's push of their open step
        self._late: Counter[Late] = Counter()
        self._newest: CellStanding | None = None
        self._reported = Attendance(step=-1)
        self._lock = threading.Lock()

    def stands(self, index: int, now: CellStanding) -> None:
        """How the cell of a partition stands now."""
        with self._lock:
            before = self._standings.get(index)
            self._standings[index] = self._newest = now
            if before == now:
                return
            if before is not None:
                self._count(before, -1)
            self._count(now, 1)

    def _count(self, standing: CellStanding, number: int) -> None:
        self._steps[standing.step] += number
        if not self._steps[standing.step]:
            del self._steps[standing.step]
        for worker in standing.here:
            self._here[worker] += number
        for late in standing.late:
            self._late[late] += number
            if not self._late[late]:
                del self._late[late]

    def poll(self) -> Attendance | None:
        """The report that is due: it differs from the last, and something can follow from it. Once each."""
        with self._lock:
            report = self._attendance()
            if report is None or report == self._reported:
                return None
            retracts = self._reported.step == report.step and self._decisive(self._reported)
            if not retracts and not self._decisive(report):
                return None
            self._reported = report
            return report

    def now(self) -> Attendance | None:
        """The report that was, or would have been, made last, if something can follow from it."""
        with self._lock:
            report = self._attendance()
            return report if report is not None and self._decisive(report) else None

    def _decisive(self, report: Attendance) -> bool:
        if report.late:
            return True
        return suffices(report.ready, report.members, self._backup, wanted=report.wanted)

    def _attendance(self) -> Attendance | None:
        newest = self._newest
        if newest is None or self._steps[newest.step] < self._num_cells:
            return None  # a choice is being carried out, cell after cell
        everywhere = [worker for worker, count in self._here.items() if count == self._num_cells]
        return Attendance(
            step=newest.step,
            ready=frozenset(everywhere),
            members=newest.members,
            wanted=newest.ahead or any(self._here.values()),
            late=frozenset(late for late, count in self._late.items() if count == self._num_cells),
        )
