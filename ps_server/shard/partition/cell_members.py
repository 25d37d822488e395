"""What the coordinator names for one cell: members that come and go while others train, chosen steps.

A base of `Cell`, whose lock and actions it uses: see `StepMachine` and `BackupStepMachine`. It must not know
why a change takes effect at the step that is named.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ps_server.agreement.attendance import Choice, Choose
from ps_server.agreement.tally import StepTally
from ps_server.shard.optimizer.mean import Scratch
from ps_server.shard.partition.backup_machine import BackupStepMachine
from ps_server.shard.partition.machine import Action, Contribution, StepMachine
from ps_wire.frames.carrier import Outlet
from ps_wire.process import trace

if TYPE_CHECKING:
    from ps_server.shard.optimizer.partition_tensors import PartitionTensors
    from ps_server.shard.partition.cell_cut import CutCell


class CellMembers:
    """See the module's docstring."""

    lock: threading.RLock
    machine: StepMachine
    cut: CutCell
    values: PartitionTensors
    _outlets: dict[int, Outlet]
    _lent: dict[int, Contribution]
    _held: int | None
    _index: int
    _quorum: StepTally | None

    def _carry_out(self, actions: Sequence[Action], now_s: float, scratch: Scratch) -> None:
        raise NotImplementedError

    def prepare(self, worker: int, incarnation: int) -> int:
        """See `StepMachine.prepare`."""
        with self.lock:
            self.cut.leave(worker)
            first = self.machine.prepare(worker, incarnation)
            self._stands()
            return first

    def leave(self, worker: int, incarnation: int, now_s: float, scratch: Scratch) -> int:
        """See `StepMachine.leave`; returns the newest clock seen here.

        From then on the worker may do with its memory what it likes: what counts of it is copied.
        """
        with self.lock:
            self.cut.leave(worker)
            self._take_over(worker, incarnation)
            self._carry_out(self.machine.leave(worker, incarnation, now_s), now_s, scratch)
            return self.machine.newest_clock

    def fence(self, worker: int, incarnation: int) -> int | None:
        """See `StepMachine.fence`; nothing is sent to the worker any more, nor written to its memory."""
        with self.lock:
            clock = self.machine.fence(worker, incarnation)
            if clock is not None:
                self.cut.leave(worker)
                self._outlets.pop(worker, None)
                self._stands()
            return clock

    @trace.traced("evict")
    def evict(self, worker: int, incarnation: int, limit: int, now_s: float, scratch: Scratch) -> int:
        """See `StepMachine.evict`; returns the newest clock seen here.

        What counts of the worker is copied, for it uses its memory again once it has joined again. A clipped
        step that waits for its scale is looked at again: the worker may have had a part in its norm.
        """
        with self.lock:
            self._take_over(worker, incarnation)
            self._held = None
            self._carry_out(self.machine.evict(worker, incarnation, limit, now_s), now_s, scratch)
            return self.machine.newest_clock

    def choose(self, choice: Choice, now_s: float, scratch: Scratch) -> None:
        """See `BackupStepMachine.choose` and `catch_up`."""
        with self.lock:
            machine = self.machine
            assert isinstance(machine, BackupStepMachine), "only backup workers have their steps chosen"
            if isinstance(choice, Choose):
                actions = machine.choose(choice.step, choice.workers, now_s)
            else:
                actions = machine.catch_up(choice.late, choice.step, now_s)
            self._carry_out(actions, now_s, scratch)

    def _take_over(self, worker: int, incarnation: int) -> None:
        lent = self._lent.get(worker)
        if lent is not None and lent.incarnation <= incarnation:
            del self._lent[worker]
        self.machine.keep(worker, _own)

    def _stands(self) -> None:
        """With backup workers: who is there may have changed, and which weights are needed."""
        if self._quorum is not None and isinstance(self.machine, BackupStepMachine):
            self._quorum.stands(self._index, self.machine.standing)
            self.values.keep_only(self.machine.needs())


def _own(contribution: Contribution) -> Contribution:
    """The contribution, with values in memory of ours."""
    gradient = contribution.payload
    if gradient is None or not gradient.borrowed:
        return contribution
    return replace(contribution, payload=replace(gradient, values=gradient.values.clone(), borrowed=False))
