"""The state machine of one partition of a job with backup workers: `bsp:backup=B`.

A step is complete when it is *chosen*: the workers whose pushes it takes, the same on every partition, have
all pushed it here (`chooser` decides). Pushes of others are dropped, then and later. A worker whose push was
dropped is *late*: what it asks for next waits for `catch_up`, which names its next step, the same everywhere.

Who has not pushed the step that it works on may still ask for the weights of that step, also after others
went on (its connection may have broken): `needs` says which versions those are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ps_server.agreement.attendance import Late
from ps_server.agreement.gate import Gate
from ps_server.agreement.tally import CellStanding
from ps_server.shard.partition.inputs import Action, Contribution
from ps_server.shard.partition.machine import StepMachine, _Member
from ps_server.shard.partition.machine_state import MachineState


@dataclass(slots=True)
class BackupStepMachine(StepMachine):
    """The state machine of a partition whose steps close without waiting for all workers.

    Not thread-safe: one input at a time.
    """

    _chosen: frozenset[int] | None = None

    @property
    def open_step(self) -> int:
        """The first that is not chosen."""
        return self.version + (self._chosen is not None)

    @property
    def standing(self) -> CellStanding:
        """Who is there, on this partition."""
        step = self.open_step
        here = frozenset(self._staged) if self._chosen is None else frozenset[int]()
        live = {worker: it for worker, it in self._members.items() if not it.fenced}
        members = {
            worker
            for worker, it in live.items()
            if it.clock <= step or (worker in here and self._staged[worker].incarnation == it.incarnation)
        }
        late = [
            Late(worker=worker, incarnation=it.incarnation, clock=it.clock)
            for worker, it in live.items()
            if it.late and worker in self._waiting
        ]
        return CellStanding(
            step=step,
            here=here,
            members=frozenset(members),
            ahead=len(members) < len(live),
            late=frozenset(late),
        )

    def begun(self) -> dict[int, int]:
        """See `StepMachine.begun`; nobody pushes a step that is chosen any more."""
        return {worker: max(step, self.open_step) for worker, step in StepMachine.begun(self).items()}

    def needs(self) -> frozenset[int]:
        """Versions of which somebody may still ask for the weights, the newest perhaps among them."""
        return frozenset(
            it.clock
            for it in self._members.values()
            if it.clock <= self.version and not it.late and not it.fenced
        )

    # -- inputs --------------------------------------------------------------------------------------

    def choose(self, step: int, workers: frozenset[int], now_s: float) -> list[Action]:
        """The open step takes the pushes of `workers`, which are here. Another step is ignored."""
        assert step <= self.open_step, (step, self.open_step)
        if step < self.open_step:
            return []
        assert workers <= self._staged.keys(), (workers, self.staged)
        self._chosen = workers
        for contribution in [item for item in self.staged if item.worker not in workers]:
            del self._staged[contribution.worker]
            self._drop(contribution)
        return self._settle(now_s)

    def catch_up(self, late: Late, step: int, now_s: float) -> list[Action]:
        """A worker that is late goes on at `step`; ignored where it is not late at this clock."""
        member = self._members.get(late.worker)
        if member is None or member.incarnation != late.incarnation or member.fenced:
            return []
        if not member.late or member.clock != late.clock:
            return []
        self._ledger(late.worker).missed += step - late.clock
        self._counts.remove(member.clock)
        self._counts.add(step)
        member.asked, member.clock, member.late = late.clock, step, False
        self._waiting.refile(late.worker, step)
        self.newest_clock = max(self.newest_clock, step)
        return self._answer(now_s)

    def decide(self, step: int, workers: frozenset[int], scale: float, now_s: float) -> list[Action]:
        """See `StepMachine.decide`: of a chosen step."""
        self._chosen = None
        return StepMachine.decide(self, step, workers, scale, now_s)

    # -- all that it holds ---------------------------------------------------------------------------

    def dump(self) -> MachineState:
        """See `StepMachine.dump`."""
        return replace(StepMachine.dump(self), chosen=self._chosen)

    def load(self, state: MachineState, now_s: float) -> None:
        """See `StepMachine.load`."""
        StepMachine.load(self, state, now_s)
        self._chosen = state.chosen

    # -- inside --------------------------------------------------------------------------------------

    def _may_ask(self, member: _Member, clock: int) -> bool:
        """Who has caught up may ask again at the clock that it had asked at."""
        return clock in (member.clock, member.asked)

    def _stage(self, contribution: Contribution) -> None:
        self._members[contribution.worker].asked = -1
        if contribution.step < self.open_step:
            self._drop(contribution)
        else:
            self._staged[contribution.worker] = contribution

    def _drop(self, contribution: Contribution) -> None:
        self._ledger(contribution.worker).dropped += 1
        member = self._members.get(contribution.worker)
        if member is not None and member.incarnation == contribution.incarnation:
            member.late = True
            self._waiting.refile(contribution.worker, None)

    def _complete(self) -> bool:
        return self._chosen is not None

    def _first_step(self, worker: int) -> int:
        if not self._members.keys() - {worker}:
            return max(self.newest_clock, self.open_step)
        taken = self._staged[worker].step + 1 if worker in self._staged else 0
        return max(self.open_step, taken)

    def _answer(self, now_s: float) -> list[Action]:
        ready = self._waiting.pop_until(self.version)
        return [self._answered(version, pulls, now_s) for version, pulls in ready.items()]


def machine_of(gate: Gate) -> StepMachine:
    """The state machine of a partition behind this gate."""
    return BackupStepMachine(gate) if gate.backup else StepMachine(gate)
