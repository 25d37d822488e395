"""A cut through one partition: what comes behind it is kept back until the partition has been sent.

Pure, in front of the partition's machine. In order:
    hold   every push is kept back; says the members' clocks, which stand still from here
    arm    c[w] is fixed: pushes with step < c[w] go on, the others stay. It must not be below the clocks held
    moment every live worker's clock is c[w], and in BSP their step has closed: now the weights are sent
    end    what was kept goes on, in the order in which it came; also without a moment, to give up

So what is sent holds exactly the pushes with step < c[w] of each live worker w. A worker that leaves drops
out of the cut, with what was kept of it: that was not acknowledged, as if it had never arrived. A pull behind
a kept push of its own waits with it: a worker reads its own writes.

Of each worker at most one push is kept, that of its clock, and one pull, that of the clock after: the machine
refuses any other at once.

It must not know weights, frames or who reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ps_server.shard.partition.machine import StepMachine

CutKey: TypeAlias = tuple[int, int]  # reader, number of its cut


@dataclass(frozen=True, slots=True)
class Kept:
    """An input that waits: a push of a step, or a pull at that clock. `again` gives it once more."""

    worker: int
    step: int
    pushes: bool
    again: Callable[[], None]


@dataclass(slots=True)
class PartitionCut:
    """The cut of one partition, and the inputs that wait behind it.

    Not thread-safe: one input at a time, under the lock of its machine.
    """

    machine: StepMachine
    key: CutKey | None = None
    _limits: Mapping[int, int] | None = None
    _kept: list[Kept] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        """Whether nothing is held and nothing waits."""
        return self.key is None and not self._kept

    def hold(self, key: CutKey) -> dict[int, int]:
        """Keeps every push back from now on; returns worker -> clock. A cut before this one ends.

        Those are told, too, who have pushed the open step and left: the cut is behind that step.
        """
        self.key, self._limits = key, None
        return self.machine.begun()

    def arm(self, key: CutKey, limits: Mapping[int, int]) -> None:
        """Fixes c, worker -> clock. Another key than the one held is of a cut that has ended."""
        if key == self.key:
            self._limits = dict(limits)

    def end(self, key: CutKey) -> None:
        """The cut is over: what is kept may go on."""
        if key == self.key:
            self.key = self._limits = None

    def keeps(self, worker: int, step: int, again: Callable[[], None], *, pushes: bool) -> bool:
        """Whether a push of `step`, or a pull at that clock, is to wait; then `again` gives it once more."""
        if not self._waits(worker, step, pushes):
            return False
        new = Kept(worker, step, pushes, again)
        for index, kept in enumerate(self._kept):
            if (kept.worker, kept.step, kept.pushes) == (worker, step, pushes):
                self._kept[index] = new  # sent again, on a new connection
                return True
        self._kept.append(new)
        return True

    def _waits(self, worker: int, step: int, pushes: bool) -> bool:
        if not pushes:
            return any(kept.pushes and (kept.worker, kept.step + 1) == (worker, step) for kept in self._kept)
        return self.key is not None and self._behind(worker, step)

    def _behind(self, worker: int, step: int) -> bool:
        clock = dict(self.machine.clocks).get(worker)
        if step != clock:
            return False  # a stranger, a duplicate, one too early: the machine answers, and nothing changes
        return self._limits is None or step >= self._limits.get(worker, 0)

    @property
    def moment(self) -> bool:
        """Whether the partition is to be sent now; `end` must follow before the next input."""
        limits = self._limits
        if self.key is None or limits is None or self.machine.staged:
            return False
        if self.machine.gate.backup:  # a late worker's pushes are not in it: it is not waited for
            return not self.machine.clocks or self.machine.version >= max(limits.values(), default=0)
        return all(clock >= limits.get(worker, 0) for worker, clock in self.machine.clocks)

    def leave(self, worker: int) -> None:
        """A worker goes, or comes back with a later incarnation."""
        self._kept = [kept for kept in self._kept if kept.worker != worker]

    def next(self) -> Kept | None:
        """Takes out the first input that need not wait any more."""
        for index, kept in enumerate(self._kept):
            if not self._waits(kept.worker, kept.step, kept.pushes):
                return self._kept.pop(index)
        return None
