"""Calls of one rank beside its script: what buckets have to do with other ranks while backward is running.

Ranks wait for each other in these calls, so all make them in one order: by turns, whatever order they come
in. Meanwhile the script goes on, and other ranks may wait for it elsewhere, such as in a collective of a
module's backward. It must not know what is called.

`Abort.changed` guards everything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ps_wire.errors import PsError
from ps_wire.process import trace, watched
from ps_worker.group.abort import Abort
from ps_worker.group.channel import Channel
from ps_worker.group.lines import LOOK_S
from ps_worker.process.waiting import waits

logger = logging.getLogger("ps_worker")

CLOSE_LIMIT_S = 2.0  # a call whose group has ended is over at once


class Beside:
    """The thread of one rank's calls, which are over before the script's thread makes such calls itself."""

    def __init__(self, channel: Channel, abort: Abort, look: Callable[[], object] = lambda: None) -> None:
        """Starts its thread with the first call.

        Args:
            channel: over which calls talk to other ranks.
            abort: that ends all waits.
            look: called now and then by who waits, who holds no lock then; may raise `PsError`.
        """
        self._look = look
        self._channel = channel
        self._abort = abort
        self._changed = abort.changed
        self._calls: dict[int, Callable[[], object]] = {}  # by turn
        self._turn = 0  # that is next, or under way
        self._under_way = False
        self._error: PsError | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether all calls are over whose turn has come; an error is no end."""
        with self._changed:
            return self._over and self._error is None

    @property
    def used(self) -> bool:
        """Whether a call was put that `wait` has not waited for."""
        with self._changed:
            return self._under_way or bool(self._turn or self._calls)

    def put(self, turn: int, call: Callable[[], object]) -> None:
        """Makes a call when all of the turns before have been made.

        Args:
            turn: 0, 1, ... since `wait`, each once.
            call: to other ranks.

        Raises:
            PsError: an earlier one has; none is made.
        """
        with self._changed:
            self._check()
            if self._thread is None:  # first: a call that Ctrl-C has left without one would be waited for
                thread = watched.thread("ps-reduce", self._work, log=logger, failed=self._failed)
                thread.start()
                self._thread = thread
            self._calls[turn] = call
            self._changed.notify_all()

    @waits("the other ranks of its group")
    def wait(self) -> None:
        """Waits until all calls are over whose turn has come, forgets others, and begins with turn 0 again.

        Raises:
            PsError: one has.
        """
        self._wait(self._end_step)

    @waits("the other ranks of its group")
    def wait_turn(self, turn: int) -> None:
        """Waits until the call of a turn is over, which was put; those behind it go on.

        Raises:
            PsError: one has; `wait` raises it again.
        """
        self._wait(lambda: self._is_over(lambda: self._turn > turn or self._error is not None, LOOK_S))

    @waits("the other ranks of its group")
    def over_within(self, limit_s: float) -> bool:
        """Waits until all calls are over whose turn has come; whether they are before `limit_s` is over.

        Raises:
            PsError: one has; `wait` raises it again.
        """
        return self._is_over(lambda: self._over, limit_s)

    def close(self) -> None:
        """No call comes any more; waits, for a while, for one that is under way."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_LIMIT_S)

    # -- inside ----------------------------------------------------------------------------------------

    def _wait(self, over: Callable[[], bool]) -> None:
        """Waits until that is so; it waits for a while each time."""
        try:
            with trace.span("wait for ranks"):
                while not over():
                    self._look()
        except PsError:
            raise
        except BaseException:  # Ctrl-C, or SIGTERM for the second time: its calls go on without it
            rank = self._channel.ranks.rank
            self._channel.broken(f"rank {rank} was interrupted while it waited for the others")
            raise

    def _is_over(self, over: Callable[[], bool], limit_s: float) -> bool:
        """Waits for a while; raises where a call has, or the group has ended."""
        with self._changed:
            found = self._changed.wait_for(lambda: over() or self._abort.error is not None, limit_s)
            if found:
                self._check()
            return found

    def _end_step(self) -> bool:
        """Waits for a while; False: calls are not over."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._over or self._abort.error is not None, LOOK_S):
                return False
            self._calls.clear()
            self._turn = 0
            try:
                self._check()
            finally:
                self._error = None
            return True

    @property
    def _over(self) -> bool:
        return not self._under_way and (self._error is not None or self._turn not in self._calls)

    def _check(self) -> None:
        self._abort.check()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (call := self._next()) is not None:
            error: PsError | None = None
            try:
                call()
            except PsError as raised:
                error = raised
            del call  # and the tensors in it
            with self._changed:
                self._under_way, self._error = False, error
                self._turn += 1
                self._changed.notify_all()

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._error is None and self._turn in self._calls)
            )
            if self._closed:
                return None
            self._under_way = True
            return self._calls.pop(self._turn)

    def _failed(self, bug: Exception) -> None:
        self._channel.broken(f"rank {self._channel.ranks.rank}: {type(bug).__name__}: {bug}")
