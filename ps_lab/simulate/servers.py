"""The servers' decisions about one table: their own gate, state machines, tally and chooser.

The one file of `ps_lab` that knows modules of `ps_server`, and pure ones alone. It knows no time: who calls
says what time it is, and carries reports and choices between shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ps_server.agreement.attendance import Attendance, Choice, Choose
from ps_server.agreement.chooser import Chooser
from ps_server.agreement.gate import gate_of
from ps_server.agreement.tally import StepTally
from ps_server.shard.partition.backup_machine import machine_of
from ps_server.shard.partition.inputs import Action, Answer, Apply, Complete, Contribution, Ledger, Pull
from ps_server.shard.partition.machine import StepMachine
from ps_wire.spec.consistency import Consistency

__all__ = ["Action", "Answer", "Apply", "Attendance", "Choice", "Ledger", "Placed", "SimulatedTable"]

_COUNTED = ("received", "applied", "dropped", "missed", "gate_wait_s")

Placed: TypeAlias = tuple[int, Action]  # and the partition that it is about


class SimulatedTable:
    """A table over shards, each with one or more partitions. Not thread-safe.

    What an input leads to comes back as actions, in order; steps that are complete have been decided then.

    Attributes:
        aggregates: a step is one update on the mean of its pushes (BSP).
        backup: so many workers need not be waited for.
    """

    def __init__(self, consistency: Consistency, shard_of: Sequence[int]) -> None:
        """Partition i lies on shard `shard_of[i]`; nobody is a member yet."""
        gate = gate_of(consistency)
        self.aggregates = gate.aggregates
        self.backup = gate.backup
        self._shard_of = tuple(shard_of)
        self._machines = [machine_of(gate) for _ in self._shard_of]
        shards = sorted(set(self._shard_of))
        self._chooser = Chooser(gate.backup, tuple(shards))
        self._tallies = {shard: StepTally(self._shard_of.count(shard), gate.backup) for shard in shards}
        self._live = 0
        self._here = [0] * len(self._machines)  # pushes of the open step: backup workers
        self._news: set[int] = set()  # shards whose tally may have some
        self._joined_late = False
        self._holds = 0

    # -- what can be asked -----------------------------------------------------------------------------

    @property
    def versions(self) -> list[int]:
        """By partition."""
        return [machine.version for machine in self._machines]

    @property
    def tau(self) -> Counter[int]:
        """Version staleness -> pushes applied with it, over all partitions."""
        return sum((machine.tau for machine in self._machines), Counter[int]())

    @property
    def ledgers(self) -> dict[int, Ledger]:
        """The ledgers of each worker's pushes and pulls, over all partitions."""
        merged: dict[int, Ledger] = {}
        for machine in self._machines:
            for worker, ledger in machine.ledgers.items():
                total = merged.setdefault(worker, Ledger())
                for name in _COUNTED:
                    setattr(total, name, getattr(total, name) + getattr(ledger, name))
        return dict(sorted(merged.items()))

    def needs(self, partition: int) -> frozenset[int]:
        """Versions, beside the newest, whose weights somebody may still get."""
        return self._machines[partition].needs()

    # -- a member's inputs -----------------------------------------------------------------------------

    def push(
        self,
        partition: int,
        worker: int,
        incarnation: int,
        *,
        step: int,
        version: int,
        payload: Any,
        now_s: float,
    ) -> list[Action]:
        """A gradient, of weights of `version`, arrives."""
        machine = self._machines[partition]
        if self.backup and step >= machine.open_step:
            self._here[partition] += 1
        contribution = Contribution(
            worker=worker, incarnation=incarnation, step=step, version=version, payload=payload
        )
        actions = self._decided(machine, machine.push(contribution, now_s), now_s)
        self._stand(partition)
        return actions

    def pull(
        self, partition: int, worker: int, incarnation: int, *, clock: int, now_s: float
    ) -> list[Action]:
        """A member asks for the weights of its next step."""
        machine = self._machines[partition]
        asked = Pull(worker=worker, incarnation=incarnation, clock=clock, asked_s=now_s)
        actions = machine.pull(asked)
        late = self.backup > 0 and not actions and machine.open_step >= clock
        self._stand(partition, look=late)
        return actions

    # -- members come and go, on all partitions at once ------------------------------------------------

    def start(self, workers: Sequence[int]) -> None:
        """The first members, at clock 0."""
        for machine in self._machines:
            for worker in workers:
                machine.join(worker, 1, 0, 0.0)
        self._live = len(workers)

    def join(self, worker: int, incarnation: int, now_s: float) -> tuple[int, list[Placed]]:
        """A worker comes in mid-run: the first step that it takes, and what follows."""
        first = max(machine.prepare(worker, incarnation) for machine in self._machines)
        self._live += 1
        self._joined_late = True
        return first, self._on_all(lambda machine: machine.join(worker, incarnation, first, now_s), now_s)

    def leave(self, worker: int, incarnation: int, now_s: float) -> list[Placed]:
        """A worker has finished."""
        self._live -= 1
        return self._on_all(lambda machine: machine.leave(worker, incarnation, now_s), now_s)

    def evict(self, worker: int, incarnation: int, now_s: float) -> list[Placed]:
        """A worker was silent for too long: what is complete on all partitions counts."""
        clocks = [machine.fence(worker, incarnation) for machine in self._machines]
        limit = min(clock for clock in clocks if clock is not None)
        self._live -= 1
        return self._on_all(lambda machine: machine.evict(worker, incarnation, limit, now_s), now_s)

    # -- backup workers: reports of shards, choices of the coordinator ---------------------------------

    def report(self, shard: int) -> Attendance | None:
        """News of a shard for the coordinator; each comes out once."""
        if shard not in self._news:
            return None
        report = self._tallies[shard].poll()
        if report is None:
            self._news.discard(shard)
        return report

    def reported(self, shard: int, report: Attendance) -> list[tuple[Choice, tuple[int, ...]]]:
        """The coordinator has a shard's report: its choices, and the shards that each goes to."""
        return self._chooser.reported(shard, report)

    def chosen(self, shard: int, choice: Choice, now_s: float) -> list[Placed]:
        """A choice has come to a shard."""

        def carry_out(machine: StepMachine) -> list[Action]:
            if isinstance(choice, Choose):
                return machine.choose(choice.step, choice.workers, now_s)
            return machine.catch_up(choice.late, choice.step, now_s)

        return self._on_all(carry_out, now_s, shard=shard)

    def hold(self) -> None:
        """A change of members begins: nothing is chosen until it has ended everywhere."""
        self._holds += 1
        self._chooser.hold()

    def release(self) -> list[tuple[Choice, tuple[int, ...]]]:
        """It has ended."""
        self._holds -= 1
        return [] if self._holds else self._chooser.release()

    # -- inside ----------------------------------------------------------------------------------------

    def _on_all(
        self, do: Callable[[StepMachine], list[Action]], now_s: float, *, shard: int | None = None
    ) -> list[Placed]:
        placed = []
        for partition, machine in enumerate(self._machines):
            if shard is None or self._shard_of[partition] == shard:
                open_step = machine.open_step
                actions = self._decided(machine, do(machine), now_s)
                if machine.open_step != open_step:
                    self._here[partition] = 0
                self._stand(partition, look=True)
                placed += [(partition, action) for action in actions]
        return placed

    def _decided(self, machine: StepMachine, actions: list[Action], now_s: float) -> list[Action]:
        """The same without complete steps, which are closed with what was pushed of them."""
        decided: list[Action] = []
        for action in actions:
            if isinstance(action, Complete):
                after = machine.decide(action.step, action.workers, 1.0, now_s)
                decided += self._decided(machine, after, now_s)
            else:
                decided.append(action)
        return decided

    def _stand(self, partition: int, *, look: bool = False) -> None:
        """Tells the tally who is there, where something could follow from it: a look costs O(members)."""
        if not self.backup:
            return
        enough = self._here[partition] >= max(1, self._live - self.backup)
        if look or enough or self._joined_late:
            shard = self._shard_of[partition]
            self._tallies[shard].stands(partition, self._machines[partition].standing)
            self._news.add(shard)
