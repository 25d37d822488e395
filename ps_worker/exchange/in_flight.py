"""Pushes without an answer and weights that were asked for, of one table, and who waits for them.

A monitor. It owns one lock with two conditions: `_answered` is notified of answers to pushes, `_changed` of
weights, so that who waits for weights is not woken by each ACK; both of a failure. The lock guards every
attribute but where a property says otherwise. Callbacks run on the thread that sees what they wait for, not
under the lock.

At most one push and one pull of a partition are under way. It makes no frames: those of pushes are kept as
they were sent, and what is still asked of a shard is told as a value. It must not know connections, memory or
plans.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ps_wire.errors import Evicted, PsError
from ps_wire.frames import frame as wire
from ps_wire.frames import lists, meta
from ps_wire.process import trace
from ps_worker.exchange.pulls import Pulls
from ps_worker.exchange.pushes import Pushes
from ps_worker.process.waiting import waits

REPORT_WAIT_S = 10.0  # longer than a step that only is slow, short for a person who looks on

Callback: TypeAlias = Callable[[PsError | None], None]
Reading: TypeAlias = tuple[Callable[[], None] | None, Callback]  # reads flat weights; is told afterwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Weights of one shard that are asked for and not here.

    Attributes:
        step: the clock at which they are asked.
        flags: of the PULL.
        nothing: no weights are asked for, only whether the gate is open.
        partitions: in the order in which they are wanted.
        ahead: the worker is still in the step before, and waits for nothing.
    """

    step: int
    flags: int
    nothing: bool
    partitions: tuple[int, ...]
    ahead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Weights that somebody waits for, for people.

    Attributes:
        step: the clock at which they were asked.
        shards: that have not sent all of theirs.
        clocks: worker -> its clock, as shards have shown it so far.
    """

    step: int
    shards: tuple[int, ...]
    clocks: dict[int, int]


def prevailing(known: PsError | None, error: PsError) -> PsError:
    """Which of two failures counts: the first one.

    But that the coordinator has evicted this worker tells more than what a shard that comes back, or a
    connection, has said before: it can join again.
    """
    joins_again = isinstance(error, Evicted) and not isinstance(known, Evicted)
    return error if known is None or joins_again else known


class InFlight:
    """Pushes and pulls of one table that are under way, behind one lock.

    Attributes:
        versions: of the weights that came last, by partition.
        clocks: worker -> its clock, as shards have shown it so far.
        skips: this worker may skip steps: which step weights are of is known when all are here.
        opened: the newest clock at which the gate is known to be open; -1: none.
        missed: steps that this worker skipped, for it was late.
        bytes_pulled: of weights that have come.
    """

    def __init__(
        self,
        shard_of: Sequence[int],
        *,
        show: Callable[[int], None],
        skips: bool,
        pulled: Sequence[int] | None = None,
    ) -> None:
        """Has nothing under way.

        Args:
            shard_of: by partition, the shard that holds it.
            show: called with the version when all weights that were asked for are here, under the lock and
                before anybody is told of it. It waits for nothing.
            skips: weights may be of a later step than they were asked for (backup workers).
            pulled: the partitions that are asked for, ascending; None: all.
        """
        self.skips = skips
        self.versions = [0] * len(shard_of)
        self.clocks: dict[int, int] = {}
        self.opened = -1
        self.missed = 0
        self.bytes_pulled = 0
        self._shard_of = tuple(shard_of)
        self._pulled = range(len(shard_of)) if pulled is None else tuple(pulled)
        self._num_shards = max(shard_of, default=-1) + 1
        self._show = show
        lock = threading.RLock()
        self._changed, self._answered = threading.Condition(lock), threading.Condition(lock)
        self._pushes = Pushes()
        self._pulls = Pulls()
        self._error: PsError | None = None
        self._when_acked: list[Callback] = []
        self._when_pulled: list[Reading] = []
        self._reading: set[int] = set()  # threads that read flat weights: others ask for none that land there
        self._spread = 0
        self._told_spread: int | None = None  # over all ranks of a group
        self._awaited: frozenset[int] = frozenset()  # partitions that a part of the model waits for

    # -- pushes ----------------------------------------------------------------------------------------

    def note(self, frames: Iterable[wire.Frame]) -> None:
        """These are about to be sent: a new connection sends them again until they are answered.

        Raises:
            PsError: the exchange has failed; none is noted.
        """
        with self._changed:
            self._raise_failed()
            for frame in frames:
                self._pushes.note(frame)

    def unacked(self) -> list[wire.Frame]:
        """Frames that were noted and are not acknowledged, in order.

        Raises:
            PsError: the exchange has failed.
        """
        with self._changed:
            self._raise_failed()
            return list(self._pushes.unacked.values())

    def sent(self, partition: int) -> wire.Frame | None:
        """The frame that was noted of a partition and is not acknowledged."""
        with self._changed:
            return self._pushes.unacked.get(partition)

    def pushed_step(self, partition: int) -> int | None:
        """The step of the last push or abstention of a partition, -1 of a start; None: there was none."""
        with self._changed:
            return self._pushes.steps.get(partition)

    def answered(self, frame: wire.Frame) -> None:
        """An ACK or FREE has come."""
        with self._changed:
            if self._pushes.answered(frame):
                self._answered.notify_all()
            acked = self._due_acked()
        for callback in acked:
            callback(None)

    def again(self, shard: int) -> tuple[list[wire.Frame], Asked | None]:
        """Gives what a new connection sends: pushes without ACK or FREE, and what is still asked for."""
        with self._changed:
            pushes = [it for it in self._pushes.again() if self._shard_of[it.partition] == shard]
            return pushes, self._asked(shard)

    # -- pulls -----------------------------------------------------------------------------------------

    def ask(self, step: int, flags: int = 0, *, nothing: bool = False) -> list[Asked | None]:
        """All weights that are pulled are asked for at this clock; returns what of each shard is asked now.

        Waits until who reads the weights of the version before has copied them.

        Args:
            step: the worker's clock, or the number of a reader's cut.
            flags: of the PULL.
            nothing: no weights are asked for, only whether the gate is open; so nothing lands.

        Raises:
            PsError: the exchange has failed.
        """
        with self._changed:
            if not nothing:
                self._reading.discard(threading.get_ident())  # it does not: Ctrl-C may have left it there
                self._changed.wait_for(lambda: not self._reading)  # a copy: it waits for nobody
            self._raise_failed()
            now = self._pulls.ask(self._pulled, step, flags, nothing=nothing)
            return [self._asked(shard, now) for shard in range(self._num_shards)]

    def forget_asked(self) -> None:
        """Weights that were asked for are not waited for any more."""
        with self._changed:
            self._pulls.forget()

    def ask_ahead(self, partitions: Collection[int], step: int) -> list[Asked | None]:
        """Says which of these to ask for, by shard, at a clock whose other weights `ask` will ask for.

        They must land where nobody reads. `note_ahead` comes when they have been asked for: see `Pulls`.

        Raises:
            PsError: the exchange has failed.
        """
        with self._changed:
            self._raise_failed()
            now = self._pulls.ask_ahead(self._pulled, partitions, step)
            return [self._asked(shard, now) for shard in range(self._num_shards)]

    def note_ahead(self, asked: Iterable[Asked | None]) -> None:
        """These have been asked for."""
        with self._changed:
            for it in asked:
                if it is not None:
                    self._pulls.note_ahead(it.partitions, it.step)

    def _asked(self, shard: int, only: Collection[int] | None = None) -> Asked | None:
        wanted = self._pulls.of_shard(self._shard_of, shard, only)
        if not wanted:
            return None
        pulls = self._pulls
        return Asked(
            step=pulls.step,
            flags=pulls.flags,
            nothing=pulls.nothing,
            ahead=pulls.ahead,
            partitions=tuple(wanted),
        )

    def expected(self, frame: wire.Frame) -> list[int]:
        """The partitions of this PULLED that are waited for."""
        with self._changed:
            return [] if self._error else self._pulls.expected(frame)

    def came(self, frame: wire.Frame, *, nbytes: int, closed: bool) -> int | None:
        """The weights of a PULLED are where they are read; those that nobody waits for any more are ignored.

        Args:
            frame: the PULLED.
            nbytes: that it has brought.
            closed: they hold this worker's push of the partition, which needs no other answer.

        Returns:
            Where it was the last that was asked for: newest minus oldest version over partitions.
        """
        spread = None
        with self._changed:
            expected = self._pulls.expected(frame)
            if not expected:
                return None
            self._see_clocks(frame)
            self.bytes_pulled += nbytes
            for partition in expected:
                self.versions[partition] = frame.version
                self._pulls.came(partition)
                if closed:
                    self._pushes.closed(partition)
            if closed:
                self._answered.notify_all()
            if not self._pulls:
                self.opened = frame.step
                self.missed += self.step_of(frame.step) - frame.step
                self._show(frame.version)
                spread = self._spread = max(self.versions) - min(self.versions)
                self._changed.notify_all()
            elif not self._awaited.isdisjoint(expected) and self._pulls.here(self._awaited):
                self._changed.notify_all()
            pulled, acked = self._due_pulled(), self._due_acked()
        self._let_read(pulled)
        for callback in acked:
            callback(None)
        return spread

    def put(self, versions: Mapping[int, int]) -> None:
        """The weights of these partitions are here, of these versions; other ranks have brought some."""
        with self._changed:
            self._raise_failed()
            for partition, version in versions.items():
                self.versions[partition] = version

    def spread_over_ranks(self, spread: int) -> None:
        """All are here, with this spread."""
        self._told_spread = spread

    def came_open(self, frame: wire.Frame) -> None:
        """The gate of a partition has opened; no weights came, and none were asked for."""
        with self._changed:
            if not self._pulls.nothing or not (expected := self._pulls.expected(frame)):
                return
            self._see_clocks(frame)
            for partition in expected:
                self._pulls.came(partition)
            if not self._pulls:
                self.opened = frame.step
                self._changed.notify_all()

    def _see_clocks(self, frame: wire.Frame) -> None:
        for worker, clock in meta.read_clocks(lists.clocks(frame)):
            self.clocks[worker] = max(clock, self.clocks.get(worker, 0))

    # -- the end of all of it --------------------------------------------------------------------------

    def fail(self, error: PsError) -> None:
        """Ends every wait, now and later, with this error, or with the one that prevails over it."""
        with self._changed:
            self._error = told = prevailing(self._error, error)
            self._changed.notify_all()
            self._answered.notify_all()
            due = [*self._when_acked, *(then for _, then in self._when_pulled)]
            self._when_acked.clear()
            self._when_pulled.clear()
        for callback in due:
            callback(told)

    def forget(self) -> None:
        """Nothing is under way any more, and nothing has failed: the worker has joined again."""
        with self._changed:
            self._pushes = Pushes()
            self._pulls.forget()
            self._error = None
            self.opened = -1

    # -- waits -----------------------------------------------------------------------------------------

    @waits("the servers to take pushes")
    def wait_acked(self, partitions: Iterable[int] | None = None, limit_s: float | None = None) -> bool:
        """Waits until these pushes (default: all) are acknowledged; False when `limit_s` ran out first.

        Raises:
            PsError: the exchange has failed.
        """
        wanted = _set_of(partitions)
        with self._answered:
            done = self._answered.wait_for(lambda: bool(self._error) or self._pushes.acked(wanted), limit_s)
            self._raise_failed()
            return done

    @waits("the servers to read gradients", inside_step=True)
    def wait_free(self, partitions: Iterable[int] | None = None) -> None:
        """Waits until the gradient memory of these partitions (default: all) may be written.

        Raises:
            PsError: the exchange has failed.
        """
        wanted = _set_of(partitions)
        with trace.span("wait for memory"), self._answered:
            self._answered.wait_for(lambda: self._error is not None or self._pushes.free(wanted))
            self._raise_failed()

    @waits("weights")
    def wait_pulled(
        self, report: Callable[[Missing], None] | None = None, wanted: frozenset[int] | None = None
    ) -> None:
        """Waits until every weight asked for has arrived.

        Args:
            report: called with what is missing every `REPORT_WAIT_S` of waiting, not under the lock.
            wanted: partitions that are enough; None: all.

        Raises:
            PsError: the exchange has failed.
        """
        with trace.span("wait for weights"):
            while (missing := self._wait_pulled(wanted)) is not None:
                if report is not None:
                    report(missing)

    def _wait_pulled(self, wanted: frozenset[int] | None) -> Missing | None:
        """Waits for `REPORT_WAIT_S` at most; None: what is wanted is here, else what is missing."""
        with self._changed:
            self._awaited = wanted or frozenset()
            here = self._changed.wait_for(
                lambda: self._error or (not self._pulls if wanted is None else self._pulls.here(wanted)),
                REPORT_WAIT_S,
            )
            self._raise_failed()
            if here:
                return None
            shards = tuple(self._pulls.shards(self._shard_of))
            return Missing(step=self._pulls.step, shards=shards, clocks=dict(self.clocks))

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

    def when_acked(self, callback: Callback) -> None:
        """Calls back once no push is under way, with None or the failure; on whichever thread sees it."""
        with self._changed:
            if not self._pushes.acked() and self._error is None:
                self._when_acked.append(callback)
                return
            error = self._error
        callback(error)

    def when_pulled(self, then: Callback, read: Callable[[], None] | None = None) -> None:
        """Calls back once every weight asked for is there; on whichever thread sees it.

        Args:
            then: gets None or the failure. It may do what it likes.
            read: called before, where nothing failed. The flat weights are its own until it returns: who asks
                for others meanwhile waits. It waits for nobody, and raises nothing.
        """
        try:
            with self._changed:
                if self._pulls and self._error is None:
                    self._when_pulled.append((read, then))
                    return
                error = self._error
                if error is None:
                    self._reading.add(threading.get_ident())
            if error is None and read is not None:
                read()
        finally:
            self._end_reading()
        then(error)

    # -- what is so now --------------------------------------------------------------------------------

    def step_of(self, clock: int) -> int:
        """The step that the weights are of which came for a pull at this clock.

        A later one where this worker was late and others went on, with backup workers.
        """
        if not self.skips:
            return clock
        with self._changed:
            return clock if self._pulls.flags else max(clock, min(self.versions))

    @property
    def spread(self) -> int:
        """Newest minus oldest version over partitions, of the newest weights of which all are known."""
        if self._told_spread is not None:
            return self._told_spread
        return self._spread if self._pulls.ahead else max(self.versions) - min(self.versions)

    @property
    def evicted(self) -> bool:
        """Whether the failure is that the worker was evicted, and it has not joined again yet."""
        return isinstance(self._error, Evicted)

    @property
    def all_pulled(self) -> bool:
        """Whether every weight asked for is here; without the lock, for the thread that asks."""
        return not self._pulls and self._error is None

    @property
    def all_free(self) -> bool:
        """Whether all gradient memory may be written; without the lock, for the thread that pushes."""
        return self._pushes.free() and self._error is None

    # -- inside ----------------------------------------------------------------------------------------

    def _due_acked(self) -> list[Callback]:
        """Who is to be told that no push is under way, each once."""
        if not self._pushes.acked():
            return []
        due = self._when_acked.copy()
        self._when_acked.clear()
        return due

    def _due_pulled(self) -> list[Reading]:
        """Who is to read the weights that are all here; they are theirs from now on."""
        if self._pulls:
            return []
        due = self._when_pulled.copy()
        self._when_pulled.clear()
        if due:
            self._reading.add(threading.get_ident())
        return due

    def _let_read(self, due: Sequence[Reading]) -> None:
        try:
            for read, _ in due:
                if read is not None:
                    read()
        finally:
            self._end_reading()
        for _, then in due:
            then(None)

    def _end_reading(self) -> None:
        """This thread reads no more, if it did."""
        with self._changed:
            if threading.get_ident() in self._reading:
                self._reading.discard(threading.get_ident())
                self._changed.notify_all()

    def _raise_failed(self) -> None:
        if self._error is not None:
            raise self._error


def _set_of(partitions: Iterable[int] | None) -> frozenset[int] | None:
    return None if partitions is None else frozenset(partitions)
