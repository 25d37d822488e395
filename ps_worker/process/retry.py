"""Retries of something that failed: for how long, with which pauses, and who is told of it.

It must not know what is tried. Time and waits are its caller's, so that a test needs neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ps_wire.errors import ConnectionLost, PsError, ServerNotReady, ServerUnreachable

BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)  # of a stream or connection that broke
PAUSE_S = 0.2  # of a single call
ON_ITS_WAY = (ConnectionLost, ServerNotReady, ServerUnreachable)  # lost there: another try may arrive

Result = TypeVar("Result")


class Retry:
    """The retries of one thing, over its failures: `fail` and `pause` after each, `work` once it does again.

    Not thread-safe: it belongs to the thread that tries.

    Attributes:
        attempt: pauses since it worked last.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        pauses_s: Sequence[float] = BACKOFF_S,
        from_now: bool = False,
        wait: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Has seen no failure.

        Args:
            limit_s: how long after the first failure it is still tried.
            pauses_s: before the second try, the third one, ...; the last one from then on.
            from_now: the limit counts from now, not from the first failure.
            wait: waits for so many seconds, or less where nothing is to be tried any more.
            clock: the time, in seconds.
        """
        self._limit_s = limit_s
        self._pauses_s = pauses_s
        self._wait = wait
        self._clock = clock
        self._since_s = clock() if from_now else None
        self.attempt = 0

    @property
    def failing(self) -> bool:
        """Whether it has failed since it worked last, or the limit counts from the beginning."""
        return self._since_s is not None

    @property
    def left_s(self) -> float:
        """Seconds until the limit is over; negative after that."""
        return self._limit_s - (0.0 if self._since_s is None else self._clock() - self._since_s)

    def fail(self) -> bool:
        """Notes that a try has failed; returns whether another one may follow."""
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s <= self._limit_s

    def pause(self, say: Callable[[], None] | None = None) -> None:
        """Waits before the next try; `say`, called before the first pause alone, tells a person."""
        if self.attempt == 0 and say is not None:
            say()
        self._wait(self._pauses_s[min(self.attempt, len(self._pauses_s) - 1)])
        self.attempt += 1

    def work(self) -> None:
        """Notes that it works: the next failure is the first one."""
        self._since_s, self.attempt = None, 0

    def hasten(self, attempt: int) -> None:
        """Pauses no longer than after so many tries, and longer only from there on."""
        self.attempt = min(self.attempt, attempt)

    def call(self, call: Callable[[], Result], *, again: Callable[[PsError], bool]) -> Result:
        """Makes a call until it succeeds; waits.

        Args:
            call: what is tried.
            again: whether another try can help after this error; what it raises ends the call.

        Raises:
            PsError: as the last try, where no other can help or the limit is over.
        """
        while True:
            try:
                return call()
            except PsError as error:
                if not again(error) or not self.fail():
                    raise
            self.pause()
