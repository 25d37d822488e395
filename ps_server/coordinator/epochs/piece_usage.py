"""A piece of an epoch that a worker hands out, and which samples of it are used. Pure values.

A batch is used when the step is committed whose gradients it went into. The worker says before a step's
pushes leave how far it has come, where that is not what its pace foretold: so the clock of its pushes tells
exactly, whenever and however it goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ps_wire.spec.epochs import PieceMark

KEPT_MARKS = 256  # of a piece; who goes has at most the last few of its steps uncommitted


@dataclass(slots=True, kw_only=True)
class PieceUsage:
    """A piece of an epoch that one worker hands out, and how much of it is used.

    Attributes:
        epoch: whose.
        share: the worker whose share it is the rest of.
        first: samples of the share that come before it.
        left_over: another worker had it before.
        open: its worker has not come to the end of it, nor to another one.
        marks: of it, by step; the last `KEPT_MARKS`.
    """

    epoch: int
    share: int
    first: int = 0
    left_over: bool = False
    open: bool = True
    marks: list[PieceMark] = field(default_factory=list)

    def dump(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)

    @classmethod
    def load(cls, facts: Mapping[str, Any]) -> PieceUsage:
        """Makes the usage that was dumped."""
        return cls(**{**facts, "marks": [PieceMark(**mark) for mark in facts["marks"]]})

    @property
    def began(self) -> int:
        """Steps that its worker had taken when it began with it, as far as they are remembered."""
        return self.marks[0].step if self.marks else 0

    def mark(self, mark: PieceMark) -> None:
        """The worker says how far it has come; of what it says of one step the last counts."""
        while self.marks and self.marks[-1].step >= mark.step:
            self.marks.pop()
        self.marks.append(mark)
        del self.marks[:-KEPT_MARKS]

    def skip(self, first: int) -> int:
        """The worker begins with this sample of the share, if that is further on; by how many samples."""
        skipped = max(first - self.first, 0)
        self.first += skipped
        return skipped

    def close(self, mark: PieceMark, rest: PieceMark) -> None:
        """The worker takes no more of it; `rest` is how far it comes with the step that follows `mark`."""
        self.open = False
        for last in (mark, rest):
            self.mark(PieceMark(step=last.step, samples=last.samples))

    def cut_off(self, clock: int) -> None:
        """The worker's steps from `clock` on do not count."""
        used = self.used(clock)
        self.open = False
        self.mark(PieceMark(step=clock, samples=used))

    def used(self, clock: int | None = None) -> int:
        """Samples that are used when the worker's first `clock` steps are committed; None: all it took."""
        if clock is None:
            clock = self.marks[-1].step if self.marks else 0
        used = 0
        for mark, later in zip(self.marks, [*self.marks[1:], None], strict=True):
            if mark.step > clock:
                break
            used = mark.at(clock)
            if later is not None:
                used = min(used, later.samples)
        return used
