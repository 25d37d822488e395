"""Backup workers: which pushes a step of one table takes, decided once, from what its shards report.

A step takes those whose pushes are complete on all shards as soon as they are enough. A late worker goes on
at the step after the newest chosen one, once every shard has told that it is late: then nothing of it is
under way. Whoever carries the choices out must bring them to each shard in the order in which they come out
here, also relative to changes of members: then all shards agree at each of them. Choices may be repeated,
then out of that order: so nothing is chosen while a change of members is under way (`hold`). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ps_server.agreement.attendance import Attendance, CatchUp, Choice, Choose, suffices

Sent: TypeAlias = tuple[Choice, tuple[int, ...]]  # and the shards that it goes to


@dataclass(slots=True)
class Chooser:
    """The choices of one table with backup workers: which pushes each step takes. Not thread-safe.

    Attributes:
        backup: so many need not be waited for.
        holders: shards that hold a part of the table.
        last: choice that was made.
    """

    backup: int
    holders: tuple[int, ...]
    last: Choose | None = None
    _held: bool = False
    _caught: dict[int, CatchUp] = field(default_factory=dict)  # by worker, the last
    _reports: dict[int, Attendance] = field(default_factory=dict)

    def reported(self, shard: int, report: Attendance) -> list[Sent]:
        """Takes a shard's report, and gives what follows; what it seems to have missed is sent again."""
        self._reports[shard] = report
        again = [(choice, (shard,)) for choice in self._again(report)]
        return again + [(choice, self.holders) for choice in self._next()]

    @property
    def made(self) -> list[Choice]:
        """Choices that a shard may not have heard."""
        caught: list[Choice] = list(self._caught.values())
        return caught if self.last is None else [self.last, *caught]

    def begin(self, step: int) -> None:
        """The open step is this one: nobody asks for what was chosen before."""
        if step > 0:
            self.last = Choose(step=step - 1, workers=frozenset())

    def remember(self, choice: Choice) -> None:
        """One that a chooser before this one has made."""
        if isinstance(choice, Choose):
            self.last = choice
        else:
            self._caught[choice.late.worker] = choice

    def hold(self) -> None:
        """A change of members begins, in two rounds."""
        self._held = True

    def release(self) -> list[Sent]:
        """It has ended: what follows from what was reported meanwhile."""
        self._held = False
        return [(choice, self.holders) for choice in self._next()]

    def _again(self, report: Attendance) -> list[Choice]:
        again: list[Choice] = [
            caught for late in sorted(report.late) if (caught := self._caught_up(late)) is not None
        ]
        if self.last is not None and report.step <= self.last.step:
            again.append(self.last)
        return again

    def _caught_up(self, late: object) -> CatchUp | None:
        return next((caught for caught in self._caught.values() if caught.late == late), None)

    def _next(self) -> list[Choice]:
        reports = [self._reports.get(holder) for holder in self.holders]
        known = [report for report in reports if report is not None]
        if self._held or len(known) < len(self.holders):
            return []
        choices: list[Choice] = []
        step = 0 if self.last is None else self.last.step + 1
        if all(report.step == step for report in known):
            ready = frozenset.intersection(*(report.ready for report in known))
            members = frozenset().union(*(report.members for report in known))
            if suffices(ready, members, self.backup, wanted=any(report.wanted for report in known)):
                self.last = Choose(step=step, workers=ready)
                choices.append(self.last)
                step += 1
        for late in sorted(frozenset.intersection(*(report.late for report in known))):
            if self._caught_up(late) is None:
                self._caught[late.worker] = CatchUp(late=late, step=step)
                choices.append(self._caught[late.worker])
        return choices
