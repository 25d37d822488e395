"""The state machine of one partition: clocks, contributions, waiting pulls, version.

Inputs are `push`, `pull`, `join`, `leave`, `withhold` and `decide`, and for members that come or go while
others train, in two rounds over all partitions, `prepare` and then `join`, `fence` and then `evict`. Each
returns the actions that follow, in order, and the caller carries them out before the next input. It holds no
weights: a push's payload is opaque here, so everything below is tested without torch, a thread or a socket.
It must not know connections or frames.

Words (docs/consistency.md): a worker's *clock* is the next step that it will push here. The *version* is, in
BSP, the number of steps closed; in SSP and ASP the number of pushes applied.

Rules (docs/protocol.md):
    R3  step < clock: a duplicate, acknowledged again; step = clock: taken; step > clock: refused
    R4  a step closes by `decide`: the machine says when every member has pushed it (`Complete`), and the
        caller looks at what was pushed, withholds what may not be applied, and decides

Invariants:
    - per worker: applied + dropped + abstained + staged = received
    - `_counts` and `_num_fenced` are those of `_members`: a push and a pull look at no other member
    - the version never decreases; a worker's clock only grows within an incarnation
    - in BSP at most one contribution per worker is staged: a push of step t needs version t (R1)
    - in SSP a push of step t needs what a pull at clock t waits for: no clock is more than s + 1 ahead
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter

from ps_server.agreement.attendance import Late
from ps_server.agreement.gate import Gate
from ps_server.agreement.tally import CellStanding
from ps_server.shard.partition.clock_counts import ClockCounts
from ps_server.shard.partition.inputs import (
    Ack,
    Action,
    Answer,
    Apply,
    Complete,
    Contribution,
    Ledger,
    Pull,
    PushOutcome,
)
from ps_server.shard.partition.machine_state import MachineMember, MachineState
from ps_server.shard.partition.waiting_pulls import WaitingPulls
from ps_wire.errors import PushOutOfOrder, StaleIncarnation, StrangerRefused

__all__ = ["Ack", "Action", "Answer", "Apply", "Complete", "Contribution", "Ledger", "StepMachine", "Pull"]

MAX_TAU = 65_535  # larger version stalenesses are counted as this: the histogram stays bounded


@dataclass(slots=True)
class _Member:
    incarnation: int
    clock: int
    prepared: bool = False
    fenced: bool = False
    late: bool = False  # with backup workers: its last push came too late, and it has no clock to pull at
    asked: int = -1  # the clock at which it was late, and may ask again

    def dump(self) -> MachineMember:
        return MachineMember(
            incarnation=self.incarnation,
            clock=self.clock,
            prepared=self.prepared,
            fenced=self.fenced,
            late=self.late,
            asked=self.asked,
        )


@dataclass(slots=True)
class StepMachine:
    """The state machine of one partition: inputs go in, actions come out.

    Not thread-safe: one input at a time.
    """

    gate: Gate
    version: int = 0
    newest_clock: int = 0
    mixed_steps: int = 0  # pushes of evicted members that were taken here, and not on all partitions
    tau: Counter[int] = field(default_factory=Counter)
    ledgers: dict[int, Ledger] = field(default_factory=dict)
    _members: dict[int, _Member] = field(default_factory=dict)
    _staged: dict[int, Contribution] = field(default_factory=dict)
    _waiting: WaitingPulls = field(default_factory=WaitingPulls)
    _counts: ClockCounts = field(default_factory=ClockCounts)  # of the members' clocks
    _num_fenced: int = 0  # of the members

    # -- what can be asked ---------------------------------------------------------------------------

    @property
    def clocks(self) -> tuple[tuple[int, int], ...]:
        """(worker, clock) of every member, by worker."""
        return tuple((worker, self._members[worker].clock) for worker in sorted(self._members))

    @property
    def staged(self) -> tuple[Contribution, ...]:
        """Contributions that wait for their step to close, in rank order."""
        return tuple(self._staged[worker] for worker in sorted(self._staged))

    @property
    def waiting(self) -> tuple[Pull, ...]:
        """Pulls that wait at the gate, by worker."""
        return tuple(self._waiting)

    @property
    def complete(self) -> bool:
        """Whether the open step may be decided: every member has pushed it, or has pushed and left."""
        return self.gate.aggregates and self._complete()

    def applies(self, contribution: Contribution) -> bool:
        """Whether `push` would apply this one, which does not abstain, at once."""
        member = self._members.get(contribution.worker)
        if member is None or member.fenced or member.incarnation != contribution.incarnation:
            return False
        opens = self.gate.opens(contribution.step, self.version, self._slowest)
        next_one = contribution.step == member.clock and not self.gate.aggregates
        return next_one and opens and not self._too_late(contribution)

    def holds(self, contribution: Contribution) -> bool:
        """Whether this very push waits for its step to close."""
        return self._staged.get(contribution.worker) is contribution

    def begun(self) -> dict[int, int]:
        """Worker -> the first step that it has not pushed; also of who pushed the open one and left."""
        return {item.worker: item.step + 1 for item in self.staged} | dict(self.clocks)

    def needs(self) -> frozenset[int]:
        """Versions of which the weights have to be kept when others follow: see `BackupStepMachine`."""
        return frozenset()

    @property
    def open_step(self) -> int:
        """The first step that is not chosen: without backup workers, the first that has not closed."""
        return self.version

    @property
    def standing(self) -> CellStanding:
        """Who is there for a choice of the open step: see `BackupStepMachine`. Here nobody chooses."""
        return CellStanding(step=self.version)

    # -- inputs --------------------------------------------------------------------------------------

    def prepare(self, worker: int, incarnation: int) -> int:
        """A worker is about to join: keeps its place in the gate, and returns the first step it can take.

        Until it joins, no step that it may have to take closes here, and nobody runs ahead of it.
        """
        known = self._members.get(worker)
        if known is not None and known.incarnation == incarnation:
            known.prepared = True
            return known.clock
        first = self._first_step(worker)
        self._enter(worker, _Member(incarnation, first, prepared=True))
        self._ledger(worker)
        return first

    def join(self, worker: int, incarnation: int, clock: int, now_s: float) -> list[Action]:
        """A worker becomes a member, or comes back with a later incarnation; `clock` is its first step."""
        known, staged = self._members.get(worker), self._staged.get(worker)
        prepared = known is not None and known.prepared and known.clock <= clock
        assert known is None or known.incarnation + (not prepared) <= incarnation, (worker, incarnation)
        assert staged is None or staged.step < clock, (worker, staged.step, clock)
        self._enter(worker, _Member(incarnation, clock))
        self.newest_clock = max(self.newest_clock, clock)
        self._ledger(worker)
        return self._settle(now_s)

    def leave(self, worker: int, incarnation: int, now_s: float) -> list[Action]:
        """A worker stops being one. What it pushed counts; what it asked for is not sent."""
        known = self._members.get(worker)
        if known is None or known.incarnation != incarnation:
            return []
        self._exit(worker)
        return self._settle(now_s)

    def fence(self, worker: int, incarnation: int) -> int | None:
        """Nothing more is taken of this member, and no step closes before `evict`; returns its clock."""
        known = self._members.get(worker)
        if known is None or known.incarnation != incarnation:
            return None
        self._num_fenced += not known.fenced
        known.fenced = True
        self._waiting.discard(worker)
        return known.clock

    def keep(self, worker: int, own: Callable[[Contribution], Contribution]) -> None:
        """Puts `own` of what is staged of a worker in its place."""
        if worker in self._staged:
            self._staged[worker] = own(self._staged[worker])

    def evict(self, worker: int, incarnation: int, limit: int, now_s: float) -> list[Action]:
        """A fenced worker stops being a member; its push of a step >= `limit` is dropped if still staged."""
        known = self._members.get(worker)
        if known is None or known.incarnation != incarnation:
            return []
        staged = self._staged.get(worker)
        if staged is not None and staged.step >= limit:
            del self._staged[worker]
            self._ledger(worker).dropped += 1
        elif known.clock > limit and not self.gate.backup:  # a step that is chosen takes no mixed ones
            self.mixed_steps += 1
        return self.leave(worker, incarnation, now_s)

    def push(self, contribution: Contribution, now_s: float) -> list[Action]:
        """A gradient, or an abstention, for one step.

        Raises:
            StrangerRefused: the worker is not a member.
            StaleIncarnation: the member has another incarnation.
            PushOutOfOrder: the step is beyond the worker's clock, or in BSP beyond the version.
        """
        member = self._member(contribution.worker, contribution.incarnation)
        ledger = self._ledger(contribution.worker)
        if contribution.step < member.clock:
            ledger.duplicates += 1
            return [Ack(worker=contribution.worker, step=contribution.step)]
        self._check_order(contribution, member.clock, ledger)
        ledger.received += 1
        self._counts.advance(member.clock)
        member.clock += 1
        self.newest_clock = max(self.newest_clock, member.clock)
        gap = member.clock - self._slowest
        ledger.max_gap = max(ledger.max_gap, gap)
        version, abstains = self.version, contribution.abstains
        if self.gate.aggregates:
            late = contribution.step < self.open_step
            applies = not (late or abstains or self.gate.backup)
            applied: list[Action] = []
            self._stage(contribution)
        else:
            applied = self._apply_now(contribution)
            applies, late = bool(applied), not (applied or abstains)
        outcome = PushOutcome(
            gap=gap, version=version if applies else None, dropped=late, abstained=abstains and not late
        )
        acknowledged = Ack(worker=contribution.worker, step=contribution.step, outcome=outcome)
        return [*applied, acknowledged, *self._settle(now_s)]

    def pull(self, pull: Pull) -> list[Action]:
        """A member asks for weights at its clock; asking again replaces what it asked before.

        Raises:
            StrangerRefused: the worker is not a member.
            StaleIncarnation: the member has another incarnation.
            PushOutOfOrder: the clock asked at is not the worker's.
        """
        member = self._member(pull.worker, pull.incarnation)
        if not self._may_ask(member, pull.clock):
            self._ledger(pull.worker).refused += 1
            raise PushOutOfOrder(
                f"worker {pull.worker} pulls at clock {pull.clock}; its clock here is {member.clock}",
                clock=member.clock,
            )
        self._waiting.put(pull, None if member.late else member.clock)
        return self._answer(pull.asked_s)

    def withhold(self, worker: int) -> None:
        """A staged contribution may not be applied: it becomes an abstention."""
        self._staged[worker] = replace(self._staged[worker], payload=None)

    def decide(self, step: int, workers: frozenset[int], scale: float, now_s: float) -> list[Action]:
        """Closes `step` with the contributions of `workers`; those of others are dropped and counted."""
        assert self.gate.aggregates, "only BSP holds pushes for a decision"
        assert step == self.version, (step, self.version)
        assert workers <= self._staged.keys(), (workers, self.staged)
        applied = []
        for contribution in self.staged:
            ledger = self._ledger(contribution.worker)
            if contribution.worker not in workers:
                ledger.dropped += 1
            elif contribution.abstains:
                ledger.abstained += 1
            else:
                ledger.applied += 1
                self._record_tau(contribution)
                applied.append(contribution)
        self._staged.clear()
        self.version += 1
        actions: list[Action] = []
        if applied:
            actions.append(
                Apply(
                    step=step,
                    contributions=tuple(applied),
                    scale=scale,
                    version=self.version,
                )
            )
        return actions + self._settle(now_s)

    def choose(self, step: int, workers: frozenset[int], now_s: float) -> list[Action]:  # noqa: ARG002
        """The open step takes the pushes of `workers`: see `BackupStepMachine`. Here no step is chosen."""
        raise AssertionError(f"step {step} is chosen, which is done with backup workers only")

    def catch_up(self, late: Late, step: int, now_s: float) -> list[Action]:  # noqa: ARG002
        """A late worker goes on at `step`: see `BackupStepMachine`. Here nobody is late."""
        raise AssertionError(f"{late} is to catch up, which is done with backup workers only")

    # -- all that it holds ---------------------------------------------------------------------------

    def dump(self) -> MachineState:
        """All that it holds, but for pulls at the gate, which come again; of these, who waits to catch up."""
        return MachineState(
            version=self.version,
            newest_clock=self.newest_clock,
            mixed_steps=self.mixed_steps,
            tau=dict(self.tau),
            ledgers={worker: replace(ledger) for worker, ledger in self.ledgers.items()},
            members={worker: member.dump() for worker, member in self._members.items()},
            staged=self.staged,
            late=tuple(pull.worker for pull in self._waiting if self._members[pull.worker].late),
        )

    def load(self, state: MachineState, now_s: float) -> None:
        """Takes over a state; nothing has come here yet. `resume` then says what follows."""
        self.version = state.version
        self.newest_clock = state.newest_clock
        self.mixed_steps = state.mixed_steps
        self.tau = Counter(state.tau)
        self.ledgers = {worker: replace(ledger) for worker, ledger in state.ledgers.items()}
        for worker, member in state.members.items():
            self._enter(worker, _Member(**asdict(member)))
        self._staged |= {item.worker: item for item in state.staged}
        for worker in state.late:
            it = state.members[worker]
            pull = Pull(worker=worker, incarnation=it.incarnation, clock=it.clock, asked_s=now_s)
            self._waiting.put(pull, None)

    def resume(self, now_s: float) -> list[Action]:
        """Gives what follows from what was loaded."""
        return self._settle(now_s)

    # -- inside --------------------------------------------------------------------------------------

    @property
    def _slowest(self) -> int:
        """The smallest clock of a member; there is one."""
        smallest = self._counts.smallest
        assert smallest is not None
        return smallest

    def _enter(self, worker: int, member: _Member) -> None:
        """A member comes, or another incarnation of it; what it asked before is not answered."""
        before = self._members.get(worker)
        if before is not None:
            self._forget(worker, before)
        self._members[worker] = member
        self._counts.add(member.clock)
        self._num_fenced += member.fenced

    def _exit(self, worker: int) -> None:
        """A member goes; what it asked is not answered."""
        self._forget(worker, self._members.pop(worker))

    def _forget(self, worker: int, member: _Member) -> None:
        self._counts.remove(member.clock)
        self._num_fenced -= member.fenced
        self._waiting.discard(worker)

    def _stage(self, contribution: Contribution) -> None:
        if contribution.step < self.version:  # its step was decided without it
            self._ledger(contribution.worker).dropped += 1
        else:
            self._staged[contribution.worker] = contribution

    def _may_ask(self, member: _Member, clock: int) -> bool:
        """Whether a member may pull at this clock."""
        return clock == member.clock

    def _member(self, worker: int, incarnation: int) -> _Member:
        member = self._members.get(worker)
        if member is None:
            raise StrangerRefused(f"worker {worker} is not a member of this job", worker=worker)
        if member.incarnation != incarnation or member.fenced:
            self._ledger(worker).refused += 1
            raise StaleIncarnation(
                f"worker {worker}: incarnation {incarnation} is "
                + ("being evicted" if member.fenced else f"not the live one, {member.incarnation}"),
                worker=worker,
                incarnation=incarnation,
                live=member.incarnation,
            )
        return member

    def _check_order(self, contribution: Contribution, clock: int, ledger: Ledger) -> None:
        if contribution.step > clock:
            ledger.refused += 1
            raise PushOutOfOrder(
                f"worker {contribution.worker} pushes step {contribution.step}; "
                f"its clock here is {clock}: send again from there",
                clock=clock,
            )
        if self.gate.aggregates and contribution.step > self.version:
            ledger.refused += 1
            raise PushOutOfOrder(
                f"worker {contribution.worker} pushes step {contribution.step} before it can have "
                f"version {contribution.step}; version {self.version} is the newest",
                clock=clock,
            )
        if not self.gate.opens(contribution.step, self.version, self._slowest):
            ledger.refused += 1
            raise PushOutOfOrder(
                f"worker {contribution.worker} pushes step {contribution.step}, further ahead of clock "
                f"{self._slowest} than the bound of {self.gate.staleness}: pull at this clock first",
                clock=clock,
            )

    def _apply_now(self, contribution: Contribution) -> list[Action]:
        ledger = self._ledger(contribution.worker)
        if contribution.abstains:
            ledger.abstained += 1
            return []
        if self._too_late(contribution):
            ledger.dropped += 1
            return []
        ledger.applied += 1
        self._record_tau(contribution)
        self.version += 1
        return [
            Apply(
                step=contribution.step,
                contributions=(contribution,),
                scale=1.0,
                version=self.version,
            )
        ]

    def _too_late(self, contribution: Contribution) -> bool:
        limit = self.gate.max_delay
        return limit is not None and self.version - contribution.version > limit

    def _settle(self, now_s: float) -> list[Action]:
        """Gives what follows where clocks or members changed: pulls that can go, a step that can close."""
        actions = self._answer(now_s)
        if self.gate.aggregates and self._complete():
            actions.append(Complete(step=self.version, workers=frozenset(self._staged)))
        return actions

    def _complete(self) -> bool:
        """Whether nobody will push the open step any more: a step that nobody has pushed closes, too."""
        if not self._members:
            return bool(self._staged)
        return self._slowest > self.version and not self._num_fenced

    def _first_step(self, worker: int) -> int:
        """The first step that has not closed, is not about to and that this worker has not taken."""
        clocks = [member.clock for other, member in self._members.items() if other != worker]
        if not clocks:
            return self.newest_clock
        if not self.gate.aggregates:
            return min(clocks)
        taken = self._staged[worker].step + 1 if worker in self._staged else 0
        return max(self.version + (min(clocks) > self.version), taken)

    def _answer(self, now_s: float) -> list[Action]:
        if not self._waiting:
            return []
        found = self._waiting.pop_until(self.gate.limit(self.version, self._slowest))
        ready = sorted((pull for pulls in found.values() for pull in pulls), key=attrgetter("worker"))
        return [self._answered(self.version, ready, now_s)] if ready else []

    def _answered(self, version: int, pulls: Sequence[Pull], now_s: float) -> Answer:
        for pull in pulls:
            self._ledger(pull.worker).gate_wait_s += max(now_s - pull.asked_s, 0.0)
        return Answer(pulls=tuple(pulls), version=version)

    def _record_tau(self, contribution: Contribution) -> None:
        self.tau[min(max(self.version - contribution.version, 0), MAX_TAU)] += 1

    def _ledger(self, worker: int) -> Ledger:
        ledger = self.ledgers.get(worker)
        if ledger is None:
            ledger = self.ledgers[worker] = Ledger()
        return ledger
