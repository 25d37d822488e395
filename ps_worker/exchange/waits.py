"""Waits for what an exchange has under way: answers to pushes, memory, weights; by blocking, or by callback.

A base of `Exchange`, which fills and empties what is waited for. `_changed` guards all of it, and is notified
of answers and failures.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from ps_wire.errors import PsError
from ps_wire.process import trace
from ps_wire.spec.plan import Partition
from ps_worker.exchange.pulls import Pulls
from ps_worker.exchange.pushes import Pushes
from ps_worker.process.waiting import waits

REPORT_WAIT_S = 10.0  # longer than a step that only is slow, short for a person who looks on

Callback: TypeAlias = Callable[[PsError | None], None]
PulledCallback: TypeAlias = tuple[Callable[[], None], Callback]  # reads flat weights; is told afterwards


class Waits:
    """See the module's docstring.

    Attributes:
        partitions: of the table.
        clocks: worker -> its clock, as shards have shown it so far.
        versions: of the weights that came last, by partition.
        skips: whether steps are closed without workers that are late.
    """

    partitions: Sequence[Partition]
    clocks: Mapping[int, int]
    versions: list[int]
    skips: int
    _table: int
    _worker: int
    _changed: threading.Condition
    _answered: threading.Condition
    _error: PsError | None
    _pushes: Pushes
    _pulls: Pulls
    _when_acked: list[Callback]
    _when_pulled: list[PulledCallback]
    _reading: int  # who read flat weights now: nothing is asked for that would land there
    _awaited: frozenset[int]  # partitions that a part of the model waits for

    @property
    def spread(self) -> int:
        """Newest minus oldest version of the weights, over partitions."""
        return max(self.versions) - min(self.versions)

    def step_of(self, clock: int) -> int:
        """The step that the weights are of which came for a pull at this clock.

        A later one where this worker was late and others went on, with backup workers.
        """
        if not self.skips:
            return clock
        with self._changed:
            return clock if self._pulls.flags else max(clock, min(self.versions))

    def fail(self, error: PsError) -> None:
        """Ends every wait, now and later, with this error; the first one stays."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
            self._answered.notify_all()
            due = self._due(self._when_acked, False)
            due += [then for _, then in self._when_pulled]
            self._when_pulled.clear()
        for callback in due:
            callback(self._error)

    @waits("the servers to take pushes")
    def wait_acked(self, partitions: Iterable[Partition] | None = None, limit_s: float | None = None) -> bool:
        """Waits until these pushes (default: all) are acknowledged; False when `limit_s` ran out first.

        Raises:
            PsError: the exchange has failed.
        """
        wanted = _indices(partitions)
        with self._answered:
            done = self._answered.wait_for(lambda: bool(self._error) or self._pushes.acked(wanted), limit_s)
            self._raise_failed()
            return done

    @waits("the servers to read gradients", inside_step=True)
    def wait_free(self, partitions: Iterable[Partition] | None = None) -> None:
        """Waits until the gradient memory of these partitions (default: all) may be written.

        Raises:
            PsError: the exchange has failed.
        """
        wanted = _indices(partitions)
        with trace.span("wait for memory"), self._answered:
            self._answered.wait_for(lambda: self._error is not None or self._pushes.free(wanted))
            self._raise_failed()

    @waits("weights")
    def wait_pulled(
        self, report: Callable[[str], None] | None = None, wanted: frozenset[int] | None = None
    ) -> None:
        """Waits until every weight asked for has arrived.

        Args:
            report: called with a text every `REPORT_WAIT_S` of waiting.
            wanted: partitions that are enough; None: all.

        Raises:
            PsError: the exchange has failed.
        """
        with trace.span("wait for weights"):
            while (text := self._wait_pulled(wanted)) is not None:
                if report is not None:  # which may ask the coordinator: not under the lock
                    report(text)

    def _wait_pulled(self, wanted: frozenset[int] | None) -> str | None:
        """Waits for `REPORT_WAIT_S` at most; None: what is wanted is here, else what is waited for."""
        with self._changed:
            self._awaited = wanted or frozenset()
            here = self._changed.wait_for(
                lambda: self._error or (not self._pulls if wanted is None else self._pulls.here(wanted)),
                REPORT_WAIT_S,
            )
            self._raise_failed()
            return None if here else self._waiting_for()

    @waits("weights")
    def all_pulled_within(self, limit_s: float) -> bool:
        """Waits until every weight asked for is here; whether it is before `limit_s` is over.

        Raises:
            PsError: the exchange has failed.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: self._error is not None or not self._pulls, limit_s)
            self._raise_failed()
            return done

    def _waiting_for(self) -> str:
        shards = self._pulls.shards(self.partitions)
        behind = sorted(it for it, at in self.clocks.items() if at < self._pulls.step and it != self._worker)
        text = f"waiting for weights of table {self._table} at step {self._pulls.step} from shards {shards}"
        return f"{text}; workers last seen behind it, on this table: {behind}" if behind else text

    def when_acked(self, callback: Callback) -> None:
        """Calls back once no push is under way, with None or the failure; on whichever thread sees it."""
        with self._changed:
            if not self._pushes.acked() and self._error is None:
                self._when_acked.append(callback)
                return
        callback(self._error)

    def when_pulled(self, then: Callback, read: Callable[[], None] = lambda: None) -> None:
        """Calls back once every weight asked for is there; on whichever thread sees it.

        Args:
            then: gets None or the failure. It may do what it likes.
            read: called before, where nothing failed. The flat weights are its own until it returns: who asks
                for others meanwhile waits. It waits for nobody, and raises nothing.
        """
        with self._changed:
            if self._pulls and self._error is None:
                self._when_pulled.append((read, then))
                return
            error = self._error
            self._reading += error is None
        if error is not None:
            then(error)
        else:
            self._show([(read, then)])

    def _due_pulled(self) -> list[PulledCallback]:
        """Who is to be shown the weights that are all here; they are theirs from now on."""
        if self._pulls:
            return []
        due = self._when_pulled.copy()
        self._when_pulled.clear()
        self._reading += len(due)
        return due

    def _show(self, due: Sequence[PulledCallback]) -> None:
        """Not under the lock."""
        for read, then in due:
            try:
                read()
            finally:
                with self._changed:
                    self._reading -= 1
                    self._changed.notify_all()
            then(None)

    @property
    def all_pulled(self) -> bool:
        """Whether every weight asked for is here; without a lock, for the thread that asks."""
        return not self._pulls and self._error is None

    @property
    def all_free(self) -> bool:
        """Whether all gradient memory may be written; without a lock, for the thread that pushes."""
        return self._pushes.free() and self._error is None

    def _raise_failed(self) -> None:
        if self._error is not None:
            raise self._error

    @staticmethod
    def _due(callbacks: list[Callback], waits: bool) -> list[Callback]:
        if waits:
            return []
        due = callbacks.copy()
        callbacks.clear()
        return due


def _indices(partitions: Iterable[Partition] | None) -> frozenset[int] | None:
    return None if partitions is None else frozenset(partition.index for partition in partitions)
