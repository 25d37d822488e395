"""A script's round over its tables, and its wait at the end of one while somebody joins.

A round is what a script of several optimizers does again and again: it steps each table, some perhaps more
often than others. It begins with the table that the script has stepped first, once all others have had their
turn. Who joined in the middle of one, in lockstep with others, would wait for them at one table, and they for
it at another.

    asked     no round begins any more; says at which steps the last one began
    named     rounds go on up to those that the worker who is ahead has begun; there it is held
    let go    on: whoever joins has entered all tables

It must not know optimizers or pushes. `_changed` guards everything below it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from ps_worker.process.waiting import waits

HOLD_LIMIT_S = 60.0  # then the coordinator is gone
# Steps of one table in a round in which another has one at most: the script has left that one.
OUT_OF_USE = 100


Held = Callable[[int, Mapping[int, int]], None]  # takes the number of a joining, and steps by table


class RoundBarrier:
    """The end of rounds, where one is held. The thread that trains calls `begin`, the stream's the others."""

    def __init__(self, clocks: Callable[[], Mapping[int, int]]) -> None:
        """Takes what gives, by table, the step that is under way or comes next."""
        self._clocks = clocks
        self._changed = threading.Condition()
        self._first: int | None = None  # the table that rounds begin with
        self._counts: Counter[int] = Counter()  # by table, steps that have begun in this round
        self._usual: Counter[int] = Counter()  # in the round before
        self._unused: set[int] = set()
        self._begun: Mapping[int, int] = {}  # where the last round began
        self._next: dict[int, int] = {}  # by table, the step after the last that has begun
        self._number: int | None = None
        self._say: Held | None = None  # of who has asked for that one
        self._beyond: Mapping[int, int] | None = None
        self._held = False

    @property
    def held_up(self) -> bool:
        """Whether this worker is asked to begin no round."""
        return self._number is not None

    @property
    def stepped(self) -> frozenset[int]:
        """Tables of which a step has begun in a round that is under way.

        What belongs to the script's first round no other tells: it is over when each table had a step.
        """
        with self._changed:
            over = self._between() or (not self._usual and self._all_begun(self._clocks()))
            return frozenset() if over else frozenset(self._counts)

    def begin(self, table: int) -> None:
        """A step of a table is about to leave; waits where a round would begin, and none may."""
        with self._changed:
            clocks = self._clocks()
            if self._first is None:
                self._first = table
            if self._held or self._begins(table, clocks):
                self._wait()
                self._usual, self._counts = self._counts or self._usual, Counter()
                self._begun = self._position(clocks)
            self._counts[table] += 1
            self._next[table] = clocks[table] + 1
            self._unused.discard(table)
            if self._counts[table] >= OUT_OF_USE:
                self._unused |= {it for it in clocks if it != table and self._counts[it] <= 1}
                self._first = table if self._first in self._unused else self._first

    def ask(self, number: int, held: Held) -> Mapping[int, int]:
        """No round is to begin any more; returns where the last one did, nothing if none has.

        Args:
            number: of the joining.
            held: called when the worker stands, with the steps at which it does; it does not wait.
        """
        with self._changed:
            self._number, self._say, self._beyond, self._held = number, held, None, False
            return dict(self._begun)

    def hold(self, number: int, beyond: Mapping[int, int]) -> None:
        """The worker is held where it would begin a round beyond these steps; says so when it is there."""
        with self._changed:
            if number == self._number:
                self._beyond = dict(beyond)
                if self._between():
                    self._note()
                self._changed.notify_all()

    def pause(self) -> None:
        """The script begins no step for a while: where it is asked to stand behind a round, it does."""
        with self._changed:
            if self._between():
                self._note()

    def let_go(self, number: int | None = None) -> None:
        """The joining of that number, or any, is over."""
        with self._changed:
            if number in (None, self._number):
                self._number, self._held = None, False
                self._changed.notify_all()

    def begin_anew(self) -> None:
        """The worker has joined again, between two rounds of the others: it is in none."""
        with self._changed:
            self._counts.clear()
            self._next.clear()
            self._begun = {}

    # -- inside ----------------------------------------------------------------------------------------

    def _begins(self, table: int, clocks: Mapping[int, int]) -> bool:
        return not self._counts or (table == self._first and self._all_begun(clocks))

    def _all_begun(self, clocks: Mapping[int, int]) -> bool:
        return clocks.keys() - self._unused <= self._counts.keys()

    def _between(self) -> bool:
        """Whether no round is under way for certain: all has been done that was done in the one before."""
        return not self._counts or self._counts == self._usual

    def _position(self, clocks: Mapping[int, int]) -> dict[int, int]:
        return {table: max(step, self._next.get(table, 0)) for table, step in clocks.items()}

    def _note(self) -> None:
        """Says that the worker is held, if it is."""
        position, beyond = self._position(self._clocks()), self._beyond
        ahead = beyond is not None and any(step > beyond.get(table, -1) for table, step in position.items())
        if ahead and not self._held and self._number is not None and self._say is not None:
            self._held = True
            self._say(self._number, position)

    @waits("a worker that joins to enter all tables")
    def _wait(self) -> None:
        while self._number is not None:
            self._note()
            if self._beyond is not None and not self._held:
                return
            if not self._changed.wait(HOLD_LIMIT_S):
                self._number, self._held = None, False
