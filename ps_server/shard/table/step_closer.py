"""The closing of one table's steps on a shard: on which thread, by which choice, with which norm.

Steps of all cells are decided here, and by nobody else: with a norm where they are clipped, with a choice
where there are backup workers. Where other shards hold parts of the table, too, both are the coordinator's.
It must not know frames or connections.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from ps_server.agreement.attendance import Attendance, Choice, TableAttendance
from ps_server.agreement.chooser import Chooser
from ps_server.agreement.clipping import Clipping, Norm, coefficient
from ps_server.agreement.messages import Report
from ps_server.agreement.tally import StepTally
from ps_server.log import logger
from ps_server.shard.partition.cell import Cell
from ps_wire.errors import InternalError
from ps_wire.spec.table import TableSpec


class StepCloser:
    """The closer of one table's steps. Thread-safe.

    `_deciding` is held over a decision or a change of members on all cells, and keeps reports in order; locks
    of cells are taken inside it. It is reentrant: what is decided may complete the next step.
    """

    def __init__(
        self,
        cells: dict[int, Cell],
        *,
        job: str,
        spec: TableSpec,
        opening: int,
        backup: int,
        clipping: Clipping | None,
        tally: StepTally | None,
        report: Callable[[Report], None] | None,
        submit: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        """Closes steps of `cells`, by index in backward order.

        Args:
            cells: of the table, on this shard.
            job: name.
            spec: of the table.
            opening: number of the order that opened it.
            backup: so many workers need not be waited for.
            clipping: that the cells tell their norms; None: steps are not clipped.
            tally: that the cells tell who is there; None: there are no backup workers.
            report: takes this shard's part of a norm, and who is there; None: it has all, and decides alone.
            submit: has complete steps closed on other threads; None: on the thread that completes one.
        """
        self._cells = cells
        self._job = job
        self._spec = spec
        self._opening = opening
        self._clipping = clipping
        self._tally = tally
        self._report = report
        self._submit = submit
        self._chooser = Chooser(backup, (0,)) if tally is not None and report is None else None
        self._deciding = threading.RLock()
        self._warned_hyper = False

    def changing(self) -> AbstractContextManager[object]:
        """A change of members on all cells, or a look at all of them: nothing is decided meanwhile."""
        return self._deciding

    def pending(self) -> list[Report]:
        """The reports from which nothing has followed yet, as far as is known here."""
        return [report for report in (self.undecided(), self.attendance()) if report is not None]

    def undecided(self) -> Norm | None:
        """The report that has no scale yet: to be made again to one who may not have heard it."""
        found = self._clipping.undecided() if self._clipping is not None and self._report else None
        return None if found is None else self._norm(*found)

    def decide(self, step: int, scale: float) -> None:
        """All shards have reported this step: it closes with this scale. Another step is ignored.

        Where steps are closed on other threads, this one is, too.
        """
        if self._submit is None:
            self._decide(step, scale)
        else:
            self._submit(partial(self._decide, step, scale))

    def reopen(self, membership_epoch: int) -> None:
        """Members have gone, in this epoch of the membership: see `Clipping.reopen`."""
        if self._clipping is not None:
            self._clipping.reopen(membership_epoch)

    def dump(self) -> int:
        """The epoch of the membership, as norms know it; 0 where steps are not clipped.

        Norms and choices themselves come again: cells are asked, and the coordinator remembers its own.
        """
        return self._clipping.membership_epoch if self._clipping is not None else 0

    def load(self, membership_epoch: int) -> None:
        """Takes over what `dump` gave."""
        self.reopen(membership_epoch)

    def choose(self, choice: Choice) -> None:
        """The coordinator has chosen what an open step takes, or where a late worker goes on."""
        with self._telling(self._cells.values()), self._deciding:
            self._choose(choice)
        self.settle()

    def attendance(self) -> TableAttendance | None:
        """The report that waits for a choice of the coordinator: to be sent again to one who may not know."""
        report = self._tally.now() if self._tally is not None and self._report else None
        return None if report is None else self._attended(report)

    def choose_from_here(self) -> None:
        """The cells hold what was loaded: where this shard chooses alone, the next step is the open one."""
        step = max((cell.machine.open_step for cell in self._cells.values()), default=0)
        if self._chooser is not None:
            self._chooser.begin(step)

    def settle(self) -> None:
        """Acts where steps may have become complete, or workers late, on all cells of this shard."""
        with self._telling(self._cells.values()):
            if self._tally is not None:
                self._report_attendance(self._tally)
            if self._clipping is not None:
                self._close_clipped(self._clipping)

    def later(self, index: int, close: Callable[[], None]) -> None:
        """Has a complete step of a cell closed, here or on another thread."""
        if self._submit is None:
            close()
        else:
            self._submit(partial(self._close, self._cells[index], close))

    def check_hyper(self, cell: Cell, step: int) -> None:
        """Warns, once for a table, where workers have pushed different hyper-parameters."""
        if not cell.hyper_mismatches or self._warned_hyper:
            return
        with self._deciding:
            warned, self._warned_hyper = self._warned_hyper, True
        if not warned:
            logger.warning(
                "job %s table %d step %d: workers pushed different hyper-parameters; those of the "
                "lowest-ranked contributor are used, others are counted (hyper_mismatches)",
                self._job,
                self._spec.number,
                step,
            )

    # -- inside ----------------------------------------------------------------------------------------

    @contextmanager
    def _telling(self, cells: Iterable[Cell]) -> Iterator[None]:
        """Our bug is what it raises: all who wait for steps of these cells are told."""
        try:
            yield
        except Exception as error:
            for cell in cells:
                cell.fail(InternalError.of(error))
            raise

    def _decide(self, step: int, scale: float) -> None:
        with self._telling(self._cells.values()), self._deciding:
            if self._clipping is None or not self._clipping.decided(step):
                return
            self._close_all(step, scale)
        self.settle()

    def _close_all(self, step: int, scale: float) -> None:
        now_s = time.monotonic()
        for cell in reversed(self._cells.values()):  # the first layers' weights leave first
            cell.decide(step, scale, now_s)
            self.check_hyper(cell, step)

    def _choose(self, choice: Choice) -> None:
        now_s = time.monotonic()
        for cell in reversed(self._cells.values()):  # the first layers' weights leave first
            cell.choose(choice, now_s)

    def _report_attendance(self, tally: StepTally) -> None:
        with self._deciding:  # reports leave in the order in which they came about
            while (report := tally.poll()) is not None:
                if self._report is not None:
                    self._report(self._attended(report))
                elif self._chooser is not None:
                    for choice, _ in self._chooser.reported(0, report):
                        self._choose(choice)

    def _attended(self, report: Attendance) -> TableAttendance:
        return TableAttendance(job=self._job, table=self._spec.number, opening=self._opening, report=report)

    def _close(self, cell: Cell, close: Callable[[], None]) -> None:
        with self._telling([cell]):
            close()
            self.check_hyper(cell, cell.machine.version - 1)
        self.settle()

    def _close_clipped(self, clipping: Clipping) -> None:
        """Reports or decides a step that has become complete on all cells of this shard, if one has."""
        found = clipping.poll()
        if found is None:
            return
        step, squares, membership_epoch = found
        if self._report is not None:
            self._report(self._norm(step, squares, membership_epoch))
        else:
            assert self._spec.clip_grad_norm is not None
            self._decide(step, coefficient(self._spec.clip_grad_norm, squares))

    def _norm(self, step: int, squares: float, membership_epoch: int) -> Norm:
        return Norm(
            job=self._job,
            table=self._spec.number,
            opening=self._opening,
            step=step,
            squares=squares,
            membership_epoch=membership_epoch,
        )
