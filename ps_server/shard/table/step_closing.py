"""How steps of one table close on a shard: on which thread, when they are chosen, by which norm if clipped.

A base of `ShardTable`. It must not know frames or connections.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ps_server.agreement.attendance import Attendance, Choice, Choose, TableAttendance
from ps_server.agreement.chooser import Chooser
from ps_server.agreement.clipping import Clipping, Norm, coefficient
from ps_server.agreement.tally import StepTally
from ps_server.log import logger
from ps_wire.errors import InternalError
from ps_wire.spec.table import TableSpec

if TYPE_CHECKING:
    from ps_server.shard.partition.cell import Cell


class TableClosing:
    """See the module's docstring.

    Attributes:
        spec: of the table.
        opening: number of the order that opened it.
    """

    spec: TableSpec
    opening: int
    _job: str
    _cells: dict[int, Cell]
    _clipping: Clipping | None
    _report: Callable[[Norm], None] | None
    _quorum: StepTally | None
    _attend: Callable[[TableAttendance], None] | None
    _chooser: Chooser | None
    _submit: Callable[[Callable[[], None]], None] | None
    _warned_hyper: bool
    _deciding: threading.RLock  # held over a decision or a change on all cells; theirs are taken inside

    def undecided(self) -> Norm | None:
        """What was reported and has no scale yet: to be reported again to one who may not have heard it."""
        found = self._clipping.undecided() if self._clipping is not None and self._report else None
        return None if found is None else self._norm(*found)

    def decide(self, step: int, scale: float) -> None:
        """All shards have reported this step: it closes with this scale. Another step is not news."""
        with self._deciding:
            if self._clipping is None or not self._clipping.decided(step):
                return
            now_s = time.monotonic()
            for cell in reversed(self._cells.values()):  # the first layers' weights leave first
                cell.decide(step, scale, now_s)
                self._check_hyper(cell, step)
        self._settle()

    def choose(self, choice: Choice) -> None:
        """The coordinator has chosen what an open step takes, or where a late worker goes on."""
        with self._deciding:
            self._choose(choice)
        self._settle()

    def attendance(self) -> TableAttendance | None:
        """What may be waited for that the coordinator chooses: to be said again to one who may not know."""
        report = self._quorum.now() if self._quorum is not None and self._attend else None
        return None if report is None else self._attended(report)

    def choose_from_here(self) -> None:
        """Its state was put into it: where this shard chooses alone, the next is the open step."""
        step = max((cell.machine.open_step for cell in self._cells.values()), default=0)
        if self._quorum is not None and self._chooser is not None and step > 0:
            self._chooser.last = Choose(step=step - 1, workers=frozenset())  # no cell asks for that

    def _choose(self, choice: Choice) -> None:
        now_s = time.monotonic()
        for cell in reversed(self._cells.values()):  # the first layers' weights leave first
            cell.choose(choice, now_s)

    def _settle(self) -> None:
        """What follows when steps may have become complete, or workers late, on all cells of this shard."""
        if self._quorum is not None:
            self._report_attendance(self._quorum)
        self._close_clipped()

    def _report_attendance(self, quorum: StepTally) -> None:
        with self._deciding:  # reports leave in the order in which they came about
            while (report := quorum.take()) is not None:
                if self._attend is not None:
                    self._attend(self._attended(report))
                elif self._chooser is not None:
                    for choice, _ in self._chooser.reported(0, report):
                        self._choose(choice)

    def _attended(self, report: Attendance) -> TableAttendance:
        return TableAttendance(job=self._job, table=self.spec.number, opening=self.opening, report=report)

    def _later(self, index: int, close: Callable[[], None]) -> None:
        if self._submit is None:
            close()
        else:
            self._submit(partial(self._close, self._cells[index], close))

    def _close(self, cell: Cell, close: Callable[[], None]) -> None:
        try:
            close()
        except Exception as error:
            cell.fail(InternalError(f"{type(error).__name__}: {error}"))
            raise
        self._check_hyper(cell, cell.machine.version - 1)
        self._settle()

    def _close_clipped(self) -> None:
        """What follows when a step may have become complete on all cells of this shard."""
        found = self._clipping.take() if self._clipping is not None else None
        if found is None:
            return
        step, squares, epoch = found
        if self._report is not None:
            self._report(self._norm(step, squares, epoch))
        else:
            assert self.spec.clip_grad_norm is not None
            self.decide(step, coefficient(self.spec.clip_grad_norm, squares))

    def _norm(self, step: int, squares: float, epoch: int) -> Norm:
        return Norm(
            job=self._job,
            table=self.spec.number,
            opening=self.opening,
            step=step,
            squares=squares,
            epoch=epoch,
        )

    def _check_hyper(self, cell: Cell, step: int) -> None:
        if not cell.hyper_mismatches or self._warned_hyper:
            return
        with self._deciding:
            warned, self._warned_hyper = self._warned_hyper, True
        if not warned:
            logger.warning(
                "job %s table %d step %d: workers pushed different hyper-parameters; those of the "
                "lowest-ranked contributor are used, others are counted (hyper_mismatches)",
                self._job,
                self.spec.number,
                step,
            )
