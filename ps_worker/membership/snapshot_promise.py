"""A worker's promise to a snapshot: which steps it does not begin before the cut is known.

A snapshot captures what a worker has beside its tables at the beginning of the cut's step.

A step begins when its first batch is about to be read by a loader of this process; else when the batch is
handed out; without a loader, at the first forward of a wrapped model, at the latest with the first push. From
`prepare` on the worker begins no step that it has promised not to, until the shards know the cut: that takes
a question to all workers and one to all shards, which nobody's training holds up.

In a group of ranks all have to capture at the beginning of one step, and the leader alone hears of a cut. So
it tells the others with what ranks say of each step (`foretell`, `hear`), and promises no step that one of
them may have begun before it hears of it. Stages of a pipeline hear a step later: by then one may have
captured what it is told again.

It must not know what is captured. `_changed` guards everything below it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from ps_wire.process import watched

logger = logging.getLogger("ps_worker")

PROMISE_LIMIT_S = 15.0  # then the coordinator, which gives the cut up before, must be gone


Put = Callable[[int, bytes], None]  # takes the number of a cut, and what was captured for it


@dataclass(frozen=True, slots=True)
class ForetoldCut:
    """A cut that shards know, as ranks hear of it.

    Attributes:
        number: of it.
        steps: table -> the first step of this worker that is not in it.
    """

    number: int
    steps: Mapping[int, int]


def put_beside(number: int, blob: bytes, put: Put) -> None:
    """Puts it on a thread of its own."""
    watched.thread("ps-capture", partial(put, number, blob), log=logger).start()


def keep_nothing(number: int, blob: bytes) -> None:
    """The put of a rank above 0, whose leader puts."""


class SnapshotPromise:
    """The promise for the cut that is coming. The user's threads call `begin`, the stream's the others.

    Attributes:
        captured: the number of the cut for which the state was captured last; None: it is over.
    """

    def __init__(
        self,
        clocks: Callable[[], Mapping[int, int]],
        state: Callable[[], bytes],
        *,
        hand: Callable[[int, bytes, Put], None] = put_beside,
        foretells: int = 0,
    ) -> None:
        """Takes what is asked when.

        Args:
            clocks: table -> this worker's step on it, the one that is under way or comes next.
            state: what is captured; called by the thread that begins the cut's step.
            hand: takes the number of the cut, what was captured, and what puts it; called by that thread.
            foretells: on the leader of a group, whose other ranks hear of a cut by `foretell`: how many steps
                behind the one that it names there is the first that none of them has begun when it hears.
                0: nobody is told.
        """
        self._clocks = clocks
        self._state = state
        self._hand = hand
        self._foretells = foretells
        self._foretold: Mapping[int, int] = {}  # the newest step with which the others heard what is known
        self._changed = threading.Condition()
        self.captured: int | None = None
        self._begun: Mapping[int, int] = {}
        self._number: int | None = None
        self._put: Put | None = None  # of who has asked for that one
        self._promised: dict[int, int] = {}
        self._cut: Mapping[int, int] | None = None

    def prepare(self, number: int, put: Put) -> dict[int, int]:
        """A cut is coming; returns the first steps that have not begun, by table: none begins until armed.

        Args:
            number: of the cut.
            put: called with what was captured, on a thread of its own; it may wait.
        """
        with self._changed:
            clocks = self._clocks()
            known = self._foretold if self._foretells else self._begun
            steps = {
                table: step + self._foretells + (known.get(table, -1) >= step)
                for table, step in clocks.items()
            }
            self._number, self._put, self._promised, self._cut = number, put, steps, None
            self.captured = None
            self._changed.notify_all()
            return steps

    def arm(self, number: int, steps: Mapping[int, int]) -> None:
        """The shards know the cut: these steps, by table."""
        with self._changed:
            if number == self._number:
                self._cut = dict(steps)
                self._changed.notify_all()

    def end(self, number: int | None = None) -> None:
        """The cut of that number, or any, is over or given up."""
        with self._changed:
            if number in (None, self.captured):
                self.captured = None
            if number in (None, self._number):
                self._number = self._cut = None
                self._changed.notify_all()

    def begin(self, tables: Iterable[int] | None = None) -> None:
        """A step is about to begin, or has begun: may be called often.

        Args:
            tables: on which; None: on all, as where a batch comes.
        """
        with self._changed:
            clocks = self._clocks()
            begins = clocks if tables is None else {table: clocks[table] for table in tables}
            number, put = self._number, self._put
            due = number is not None and self._due(clocks, begins)
            if due:
                self.captured, self._number, self._cut = number, None, None
            self._begun = {**self._begun, **begins}
        if due and number is not None and put is not None:
            self._hand(number, self._state(), put)

    def foretell(self, table: int, step: int) -> ForetoldCut | None:
        """All ranks are about to hear the same of a step: gives the cut that is known; waits for one to come.

        Whoever hears it has begun no step that is `foretells` behind that one.
        """
        with self._changed:
            self._wait_known()
            self._foretold = {**self._foretold, table: step}
            if self._number is None or self._cut is None:
                return None
            return ForetoldCut(self._number, self._cut)

    def hear(self, cut: ForetoldCut | None) -> None:
        """On a rank above 0: what the leader has foretold."""
        with self._changed:
            self._number = self._cut = None
            if cut is None:
                self.captured = None
            elif cut.number != self.captured:
                self._number, self._cut, self._put = cut.number, cut.steps, keep_nothing

    def _wait_known(self) -> None:
        known = lambda: self._number is None or self._cut is not None  # noqa: E731
        if not self._changed.wait_for(known, PROMISE_LIMIT_S):
            self._number = None

    def _due(self, clocks: Mapping[int, int], begins: Mapping[int, int]) -> bool:
        """Whether this is the beginning of the cut's step; waits where it may be, and nobody knows yet."""
        if self._cut is None and _any_reached(begins, self._promised):
            self._wait_known()
        if self._number is None or self._cut is None:
            return False
        return all(clocks.get(table, step) >= step for table, step in self._cut.items())


def _any_reached(clocks: Mapping[int, int], steps: Mapping[int, int]) -> bool:
    return any(clocks.get(table, -1) >= step for table, step in steps.items())
