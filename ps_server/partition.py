"""The state machine of one partition: clocks, contributions, waiting pulls, version.

Inputs are `push`, `pull`, `join`, `leave`, `withhold` and `decide`; each returns the actions that follow, in
order, and the caller carries them out before the next input. It holds no weights: a push's payload is
opaque here, so everything below is tested without torch, a thread or a socket. It must not know connections
or frames.

Words (docs/consistency.md): a worker's *clock* is the next step that it will push here. The *version* is, in
BSP, the number of steps closed; in SSP and ASP the number of pushes applied.

Rules (docs/protocol.md):
    R3  step < clock: a duplicate, acknowledged again; step = clock: taken; step > clock: refused
    R4  a step closes by `decide`: the machine says when every member has pushed it (`Complete`), and the
        caller looks at what was pushed, withholds what may not be applied, and decides

Invariants:
    - per worker: applied + dropped + abstained + staged = received
    - the version never decreases; a worker's clock only grows within an incarnation
    - in BSP at most one contribution per worker is staged: a push of step t needs version t (R1)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ps_server.gate import Gate
from ps_wire.errors import PushOutOfOrder, StaleIncarnation, StrangerRefused

MAX_TAU = 65_535  # larger version stalenesses are counted as this: the histogram stays bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One worker's push of one step.

    Attributes:
        worker: its number; contributions are summed in this order.
        incarnation: of the worker.
        step: its clock when it pushed.
        version: of the weights that the gradient was computed on.
        weight: in the mean (BSP).
        payload: opaque; None abstains.
    """

    worker: int
    incarnation: int
    step: int
    version: int = 0
    weight: float = 1.0
    payload: Any = None

    @property
    def abstains(self) -> bool:
        """Whether the worker's clock advances and nothing is applied."""
        return self.payload is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """A worker asks for weights at its clock. `asked_s` is the caller's clock, in seconds."""

    worker: int
    incarnation: int
    clock: int
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Average `contributions` (rank order, none abstains), scale the mean, take one optimizer step."""

    step: int
    contributions: tuple[Contribution, ...]
    scale: float
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The push of `step` is accounted for: it will never be applied again."""

    worker: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Send the weights of `version` to those who asked; `clocks` are those of the members by now."""

    pulls: tuple[Pull, ...]
    version: int
    clocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """Every member has pushed `step`: it may be decided. Said again when members change before that."""

    step: int
    workers: frozenset[int]


Action: TypeAlias = Apply | Ack | Answer | Complete


@dataclass(slots=True)
class Ledger:
    """What became of one worker's pushes and pulls here, over all its incarnations."""

    received: int = 0
    applied: int = 0
    dropped: int = 0
    abstained: int = 0
    duplicates: int = 0
    refused: int = 0
    max_gap: int = 0
    gate_wait_s: float = 0.0


@dataclass(slots=True)
class _Member:
    incarnation: int
    clock: int


@dataclass(slots=True)
class Partition:
    """See the module's docstring. Not thread-safe: one input at a time."""

    gate: Gate
    version: int = 0
    newest_clock: int = 0
    tau: Counter[int] = field(default_factory=Counter)
    ledgers: dict[int, Ledger] = field(default_factory=dict)
    _members: dict[int, _Member] = field(default_factory=dict)
    _staged: dict[int, Contribution] = field(default_factory=dict)
    _waiting: dict[int, Pull] = field(default_factory=dict)

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
        return tuple(self._waiting[worker] for worker in sorted(self._waiting))

    @property
    def complete(self) -> bool:
        """Whether the open step may be decided: every member has pushed it, or has pushed and left."""
        return self.gate.aggregates and self._complete()

    # -- inputs --------------------------------------------------------------------------------------

    def join(self, worker: int, incarnation: int, clock: int, now_s: float) -> list[Action]:
        """A worker becomes a member, or comes back with a later incarnation; `clock` is its first step."""
        known, staged = self._members.get(worker), self._staged.get(worker)
        assert known is None or known.incarnation < incarnation, (worker, incarnation)
        assert staged is None or staged.step < clock, (worker, staged.step, clock)
        self._members[worker] = _Member(incarnation, clock)
        self.newest_clock = max(self.newest_clock, clock)
        self._waiting.pop(worker, None)
        self._ledger(worker)
        return self._settle(now_s)

    def leave(self, worker: int, incarnation: int, now_s: float) -> list[Action]:
        """A worker stops being one. What it pushed counts; what it asked for is not sent."""
        known = self._members.get(worker)
        if known is None or known.incarnation != incarnation:
            return []
        del self._members[worker]
        self._waiting.pop(worker, None)
        return self._settle(now_s)

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
        member.clock += 1
        self.newest_clock = max(self.newest_clock, member.clock)
        gap = member.clock - min(other.clock for other in self._members.values())
        ledger.max_gap = max(ledger.max_gap, gap)
        acknowledged = Ack(worker=contribution.worker, step=contribution.step)
        if self.gate.aggregates:
            if contribution.step < self.version:  # its step was decided without it
                ledger.dropped += 1
            else:
                self._staged[contribution.worker] = contribution
            return [acknowledged, *self._settle(now_s)]
        return [*self._apply_now(contribution), acknowledged, *self._settle(now_s)]

    def pull(self, pull: Pull) -> list[Action]:
        """A member asks for weights at its clock; asking again replaces what it asked before.

        Raises:
            StrangerRefused: the worker is not a member.
            StaleIncarnation: the member has another incarnation.
            PushOutOfOrder: the clock asked at is not the worker's.
        """
        member = self._member(pull.worker, pull.incarnation)
        if pull.clock != member.clock:
            self._ledger(pull.worker).refused += 1
            raise PushOutOfOrder(
                f"worker {pull.worker} pulls at clock {pull.clock}; its clock here is {member.clock}",
                clock=member.clock,
            )
        self._waiting[pull.worker] = pull
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

    # -- inside --------------------------------------------------------------------------------------

    def _member(self, worker: int, incarnation: int) -> _Member:
        member = self._members.get(worker)
        if member is None:
            raise StrangerRefused(f"worker {worker} is not a member of this job", worker=worker)
        if member.incarnation != incarnation:
            self._ledger(worker).refused += 1
            raise StaleIncarnation(
                f"worker {worker}: incarnation {incarnation} is not the live one, {member.incarnation}",
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

    def _apply_now(self, contribution: Contribution) -> list[Action]:
        ledger = self._ledger(contribution.worker)
        if contribution.abstains:
            ledger.abstained += 1
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

    def _settle(self, now_s: float) -> list[Action]:
        """What follows when clocks or members changed: pulls that can go, a step that can close."""
        actions = self._answer(now_s)
        if self.gate.aggregates and self._complete():
            actions.append(Complete(step=self.version, workers=frozenset(self._staged)))
        return actions

    def _complete(self) -> bool:
        """Whether nobody will push the open step any more: a step that nobody has pushed closes, too."""
        if not self._members:
            return bool(self._staged)
        return all(member.clock > self.version for member in self._members.values())

    def _answer(self, now_s: float) -> list[Action]:
        clocks = [member.clock for member in self._members.values()]
        ready = [pull for pull in self.waiting if self.gate.opens(pull.clock, self.version, clocks)]
        if not ready:
            return []
        for pull in ready:
            del self._waiting[pull.worker]
            self._ledger(pull.worker).gate_wait_s += now_s - pull.asked_s
        return [Answer(pulls=tuple(ready), version=self.version, clocks=self.clocks)]

    def _record_tau(self, contribution: Contribution) -> None:
        self.tau[min(max(self.version - contribution.version, 0), MAX_TAU)] += 1

    def _ledger(self, worker: int) -> Ledger:
        return self.ledgers.setdefault(worker, Ledger())
