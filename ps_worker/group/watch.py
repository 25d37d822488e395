"""Signs of life of the ranks of a group, over the store that they share.

Each rank counts up in the store; the leader looks at all, the others at the leader. A rank that is silent for
half a lease, a store that is gone, and the word of another rank that the group is broken each set the
`Abort`. A rank that leaves in order says so, and nobody waits for its signs any more.

A leader that is stopped answers no question to the store, and the thread that asks hangs: who waits for other
ranks looks (`check_answered`) since when. Time in which this rank itself did not look, or asked nothing, is
nobody's silence: on a machine with ten times as many busy threads as cores, a look of four questions takes a
second, and where all of it is paused all ranks are.

`_lock` is held over each round of questions to the store, so that the last word is said by one thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from ps_wire.process import watched
from ps_wire.process.ranks import Ranks
from ps_worker.group.abort import Abort

logger = logging.getLogger("ps_worker")

Result = TypeVar("Result")

BEATS = 20  # in a lease: half a lease is ten of them
MOST_S = 0.5  # between two: so long may a rank not know that the group is broken
BROKEN, LEFT = "broken", "left"
LATE = 2.0  # periods after the look before, this rank was held up itself
LEAVE_LIMIT_S = 5.0  # that the leader, which keeps the store, waits for the others to leave
AGREED_LIMIT_S = 8.0  # the same where all have agreed to: none of them trains on, but one may be held up
BROKEN_LIMIT_S = 1.5  # the same where the group is broken, and one of them may be dead


class Store(Protocol):
    """The store, as far as it is used here. Each call may raise RuntimeError: it is gone."""

    def set(self, key: str, value: str) -> object:
        """Writes."""

    def get(self, key: str) -> bytes:
        """Reads; waits where there is nothing yet."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of these are there."""


class Watch:
    """The watch of one rank over the others that it looks at."""

    def __init__(
        self,
        ranks: Ranks,
        store: Store,
        abort: Abort,
        *,
        lease_s: float,
        hosts: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Does nothing yet.

        Args:
            ranks: which one this is.
            store: of the group.
            abort: is set where the group is broken.
            lease_s: of the worker; a rank may be silent for half of it.
            hosts: by rank, for people.
            clock: gives seconds.
        """
        self._ranks = ranks
        self._store = store
        self._abort = abort
        self._silent_s = lease_s / 2 if ranks.leads else lease_s
        self._period_s = min(lease_s / BEATS, MOST_S)
        self._hosts = hosts
        self._clock = clock
        others = range(1, ranks.size) if ranks.leads else (0,)
        now_s = clock()
        self._seen: dict[int, tuple[bytes, float]] = dict.fromkeys(others, (b"", now_s))
        self._gone: set[int] = set()  # left in order
        self._count = 0
        self._looked_s = now_s
        self._asked_s: float | None = None  # since when a question is under way
        self._hung = False  # the store, or it is gone: nothing is asked any more
        self._closed = threading.Event()
        self._all_left = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begins to look, on a thread of its own."""
        watched.endless_thread("ps-rank", self._run, log=logger, pause=self._closed.wait).start()

    def look(self) -> None:
        """Gives one sign of life, and looks for those of others; sets the abort where one is missing."""
        with self._lock:
            if self._closed.is_set() or self._hung:
                return
            try:
                self._look()
            except RuntimeError:
                self._hung = True  # torch shows two pages for each question that fails
                self._abort.set("rank 0, which keeps the group's store, has gone")

    def check_answered(self) -> None:
        """Sets the abort where the store has not answered for too long; waits for nothing."""
        asked_s = self._asked_s
        silent_s = 0.0 if asked_s is None else self._clock() - asked_s
        if silent_s > self._silent_s and not self._closed.is_set():
            self._hung = True
            self._abort.set(f"rank 0 on {self._hosts[0]} was silent for {silent_s:.1f} s")

    def tell(self, reason: str) -> None:
        """The group is broken: the others are to hear why, as far as they still can."""
        self._try(lambda: self._store.check([BROKEN]) or self._store.set(BROKEN, reason))

    def reason(self) -> str | None:
        """Why the group is broken, where another rank has said so."""
        found = self._try(lambda: self._store.get(BROKEN) if self._store.check([BROKEN]) else None)
        return found.decode() if isinstance(found, bytes) else None

    def leave(self, *, agreed: bool = False) -> bool:
        """This rank leaves; the leader waits for the others for a while, for it keeps the store.

        Args:
            agreed: all ranks leave now, at one common step.

        Returns:
            On the leader, whether all others have left in order; on the others, True.
        """
        if not self._closed.is_set():
            self._closed.set()
            self._all_left = self._try(lambda: self._leave(agreed=agreed)) is True
        return self._all_left

    # -- inside ----------------------------------------------------------------------------------------

    def _try(self, ask: Callable[[], object]) -> object:
        """Asks the store, if it answers."""
        if self._hung or not self._lock.acquire(timeout=BROKEN_LIMIT_S):
            return None
        try:
            return ask()
        except RuntimeError:
            self._hung = True
            return None
        finally:
            self._lock.release()

    def _leave(self, *, agreed: bool) -> bool:
        self._store.set(_alive(self._ranks.rank), LEFT)
        return not self._ranks.leads or self._wait_left(AGREED_LIMIT_S if agreed else LEAVE_LIMIT_S)

    def _run(self) -> None:
        while not self._closed.wait(self._period_s):
            self.look()

    def _look(self) -> None:
        self._count += 1
        self._ask(lambda: self._store.set(_alive(self._ranks.rank), str(self._count)))
        if self._ask(lambda: self._store.check([BROKEN])):
            self._abort.set(self._ask(lambda: self._store.get(BROKEN)).decode())
            return
        now_s = self._clock()
        late_s = max(now_s - self._looked_s - LATE * self._period_s, 0.0)
        self._looked_s = now_s
        for rank, (last, since_s) in self._seen.items():
            if rank in self._gone:
                continue
            sign = self._sign_of(rank)
            if sign == LEFT.encode():
                self._gone.add(rank)
                continue
            seen_s = since_s + late_s if sign == last else now_s
            self._seen[rank] = sign, seen_s
            if now_s - seen_s > self._silent_s:
                reason = f"rank {rank} on {self._hosts[rank]} was silent for {now_s - seen_s:.1f} s"
                self._abort.set(reason)
                self._store.set(BROKEN, reason)
                return

    def _sign_of(self, rank: int) -> bytes:
        key = _alive(rank)
        return self._ask(lambda: self._store.get(key)) if self._ask(lambda: self._store.check([key])) else b""

    def _ask(self, question: Callable[[], Result]) -> Result:
        self._asked_s = self._clock()
        try:
            return question()
        finally:
            self._asked_s = None

    def _wait_left(self, limit_s: float) -> bool:
        limit_s = limit_s if self._abort.error is None else BROKEN_LIMIT_S
        until_s = self._clock() + limit_s
        waited_for = [rank for rank in self._seen if rank not in self._gone]
        pause = threading.Event()
        while waited_for and self._clock() < until_s:
            waited_for = [rank for rank in waited_for if not self._has_left(rank)]
            if waited_for:
                pause.wait(min(self._period_s, 0.05))
        return not waited_for

    def _has_left(self, rank: int) -> bool:
        return self._store.check([_alive(rank)]) and self._store.get(_alive(rank)) == LEFT.encode()


def _alive(rank: int) -> str:
    return f"alive/{rank}"
