"""The way back of a worker that was evicted, or whose job went back to a snapshot, as another incarnation.

An evicted worker was held up for longer than its lease, and the others went on. It takes what they have by
now: the weights, and of the lowest worker that trains the buffers and what is registered. Used by the thread
that trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import torch

from ps_wire.errors import Evicted, PsError, RolledBack
from ps_worker.job.job_presence import JobPresence
from ps_worker.job.link_listener import LinkListener
from ps_worker.job.resumption import Resumption
from ps_worker.job.table_start import TableStart
from ps_worker.membership.round_barrier import RoundBarrier
from ps_worker.membership.snapshot_promise import SnapshotPromise


class Rejoiner:
    """Joins again with all tables, and keeps which steps of the script are undone by that."""

    def __init__(
        self,
        presence: JobPresence,
        start: TableStart,
        resumption: Resumption,
        listener: LinkListener,
        *,
        promise: SnapshotPromise,
        rounds: RoundBarrier,
    ) -> None:
        """Has nothing undone.

        Args:
            presence: which enters again.
            start: of the tables, which are entered again.
            resumption: where the script goes on.
            listener: the worker.
            promise: to snapshots; that of the incarnation before is over.
            rounds: where the script is; it is in none then.
        """
        self._presence = presence
        self._start = start
        self._resumption = resumption
        self._listener = listener
        self._promise = promise
        self._rounds = rounds
        self._undone: tuple[RolledBack, Mapping[str, torch.Tensor] | None] | None = None

    def rejoin(self) -> None:
        """To be called by the thread that got `Evicted`: joins again, with the weights and the state of now.

        What this worker had computed meanwhile is void. Does nothing if another call has done it.

        Raises:
            WorkerNumberTaken: another process has this worker's number by now.
            PsError: the job cannot go on.
        """
        while isinstance(evicted := self._presence.exchanges.failure, Evicted):
            self._listener.say(f"{evicted.message}; joining again")
            try:
                with suppress(Evicted):  # again
                    self._reenter(evicted)
            except Exception:
                raise
            except BaseException:  # Ctrl-C: whoever goes on does it again
                self._presence.exchanges.fail(evicted)
                raise

    def refused(self, error: Evicted) -> None:
        """A call beside the connections got this first: joins again."""
        self._presence.exchanges.fail(error)
        self.rejoin()

    @property
    def undone(self) -> bool:
        """Whether steps are undone that the script has not heard of: until `announce`, nothing counts."""
        return self._undone is not None

    def announce(self) -> None:
        """To be called by the thread that trains, where it takes a step: whether steps of it are undone.

        Raises:
            RolledBack: once after each rollback.
        """
        undone, self._undone = self._undone, None
        if undone is not None:
            error, saved = undone
            if saved is not None:  # a pass that has run since, or a batch, has changed what was set
                self._resumption.restore(saved)
            raise error

    def _reenter(self, evicted: Evicted) -> None:
        self._presence.abandon()
        self._promise.end()
        try:
            self._presence.enter()
        except PsError as error:
            self._presence.exchanges.fail(error)
            raise
        joined = self._presence.joined
        if joined.rolled_back:
            self._start.check(joined.num_tables)
        self._presence.exchanges.reenter(joined.incarnation)
        if (failure := self._presence.failure) is not None:  # it came since, and they have just forgotten it
            self._presence.exchanges.fail(failure)
            raise failure
        for exchange in self._presence.exchanges:
            exchange.connect(self._presence.connections)
        self._presence.connect()
        found = self._resumption.find()
        steps = self._start.enter_again()
        self._resumption.go_on(found)
        self._listener.reentered(steps)
        self._rounds.begin_anew()
        if joined.rolled_back or isinstance(evicted, RolledBack) or self.undone:
            step = max(steps.values(), default=0)
            undone = RolledBack(f"{evicted.message}; this worker goes on at step {step}", step=step)
            self._undone = undone, (found.state if found.saved else None)
        self._listener.say(f"joined again, as incarnation {joined.incarnation}, at steps {steps}")
