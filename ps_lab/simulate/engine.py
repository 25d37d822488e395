"""A simulation: workers and shards in virtual time, events in a heap, no sleeping.

Who decides what a push leads to are the servers' own machines (`servers.py`). Here are the queues between:
links, shards that work on one push at a time, workers that compute. Runs with equal setups are equal.

Simplified: a change of members happens on all shards at one moment, `control_s` after the coordinator has
heard of it; a worker that is killed has nothing under way; all partitions are of one size.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ps_lab.simulate.costs import Costs
from ps_lab.simulate.servers import Action, Answer, Apply, Attendance, Choice, Ledger, Placed, SimulatedTable
from ps_lab.simulate.shared_cores import SharedCores
from ps_lab.simulate.steps import StepTable
from ps_wire.errors import UsageError
from ps_wire.spec.consistency import BSP, Consistency
from ps_wire.spec.stragglers import StragglerProfile

MAX_WORKERS = 100_000
MAX_PARTITIONS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The job and the machines that are simulated.

    Attributes:
        consistency: the model.
        num_workers: who start together.
        num_shards: servers.
        partitions_per_shard: of the table.
        num_steps: a worker leaves when its clock is there; None: only the time ends the run.
        limit_s: of virtual time; None: the steps end the run.
        costs: of a step.
        stragglers: who is slower, and when.
        batch_size: samples of a step.
        delay: gradients are applied so many steps late (BSP alone): staleness by itself, without any race.
        evaluate_s: virtual time between two evaluations of the weights; 0: none but at the end.
        seed: of the draws of compute times.
    """

    consistency: Consistency
    num_workers: int
    num_shards: int = 1
    partitions_per_shard: int = 1
    num_steps: int | None = None
    limit_s: float | None = None
    costs: Costs = field(default_factory=Costs)
    stragglers: StragglerProfile = field(default_factory=StragglerProfile)
    batch_size: int = 1
    delay: int = 0
    evaluate_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_workers <= MAX_WORKERS:
            raise UsageError(f"simulate: num_workers must be from 1 to {MAX_WORKERS}, got {self.num_workers}")
        if self.num_shards < 1 or self.partitions_per_shard < 1 or self.num_partitions > MAX_PARTITIONS:
            raise UsageError(
                f"simulate: servers and partitions must be >= 1, and together at most {MAX_PARTITIONS}, got "
                f"{self.num_shards} x {self.partitions_per_shard}"
            )
        if self.num_steps is None and self.limit_s is None:
            raise UsageError("simulate: a number of steps or a time must be given, or the run does not end")
        for name, number in (("num_steps", self.num_steps), ("batch_size", self.batch_size)):
            if number is not None and number < 1:
                raise UsageError(f"simulate: {name} must be >= 1, got {number}")
        for name, value in (("limit_s", self.limit_s), ("evaluate_s", self.evaluate_s or None)):
            if value is not None and not 0.0 < value < math.inf:
                raise UsageError(f"simulate: {name} must be > 0 and finite, got {value:g}")
        if self.delay < 0 or (self.delay and self.consistency != BSP()):
            raise UsageError(
                f"simulate: a staleness of {self.delay} on purpose must be >= 0 and needs bsp, got "
                f"{self.consistency}: take one of them away"
            )

    @property
    def num_partitions(self) -> int:
        """Over all shards."""
        return self.num_shards * self.partitions_per_shard


class Learner(Protocol):
    """Real gradients and weights, where they are wanted. Partition i is slice i of all weights."""

    def gradient(self, worker: int, step: int, weights: Sequence[Any]) -> tuple[Sequence[Any], float]:
        """The gradient by partition, and the loss, of a worker's batch on these weights."""
        ...

    def apply(self, partition: int, gradients: Sequence[Any], version: int, keep: frozenset[int]) -> None:
        """One step on the mean of `gradients`, in rank order; weights of `keep` are still asked for."""
        ...

    def weights(self, partition: int, version: int) -> Any:
        """Weights that nobody writes any more."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Metrics of the newest weights."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Metrics of the weights at a moment of virtual time."""

    time_s: float
    version: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """The work that a worker has in hand when the run ends.

    Attributes:
        worker: its number.
        versions: of its weights, by partition.
    """

    worker: int
    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """The outcome of a simulation.

    Attributes:
        setup: what was simulated.
        steps: that ended within the time.
        duration_s: virtual.
        versions: by partition, at the end.
        tau: version staleness -> pushes, over partitions.
        ledgers: what became of each worker's pushes, over partitions.
        in_flight: by live worker.
        evaluations: in the order of time, the last at the end.
        events: that the heap had.
    """

    setup: Setup
    steps: StepTable
    duration_s: float
    versions: tuple[int, ...]
    tau: Counter[int]
    ledgers: Mapping[int, Ledger]
    in_flight: tuple[InFlight, ...]
    evaluations: tuple[Evaluation, ...]
    events: int

    @property
    def received(self) -> int:
        """Pushes, over workers and partitions."""
        return sum(it.received for it in self.ledgers.values())

    @property
    def applied(self) -> int:
        """Of those received."""
        return sum(it.applied for it in self.ledgers.values())

    @property
    def dropped(self) -> int:
        """Of those received."""
        return sum(it.dropped for it in self.ledgers.values())

    @property
    def missed(self) -> int:
        """Steps that workers skipped, over partitions."""
        return sum(it.missed for it in self.ledgers.values())

    @property
    def steps_per_s(self) -> float:
        """Steps of all workers in a second of virtual time."""
        return len(self.steps) / self.duration_s if self.duration_s else math.inf


class _Clocks:
    """The smallest clock of the members, at O(1) a step."""

    def __init__(self) -> None:
        self._at: Counter[int] = Counter()
        self.least = 0

    def add(self, clock: int) -> None:
        self.least = min(self.least, clock) if self._at else clock
        self._at[clock] += 1

    def remove(self, clock: int) -> None:
        self._at[clock] -= 1
        if not self._at[clock]:
            del self._at[clock]
            if clock == self.least and self._at:
                self.least = clock + 1 if clock + 1 in self._at else min(self._at)


class _Worker:
    """One worker: numbers and times. `incarnation` is 0 while it is dead."""

    __slots__ = (
        "answered_s", "applied", "arrived_s", "asked_at", "asked_s", "begun_s", "clock", "computed_s",
        "delay_s", "down_free_s", "entering", "frame_s", "gap", "incarnation", "index", "link_factor",
        "loss", "measured_s", "missing", "newest", "over", "payloads", "read", "taken", "tau", "up_free_s",
        "versions", "weights",
    )  # fmt: skip

    def __init__(self, index: int, num_partitions: int, costs: Costs) -> None:
        link = costs.link_of(index)
        self.index = index
        self.frame_s = costs.num_bytes / num_partitions / link.bytes_per_s  # of its link, for a partition
        self.delay_s = costs.latency_s + link.latency_s
        self.incarnation = self.newest = 1
        self.clock = 0
        self.versions = [0] * num_partitions
        self.weights: list[Any] = [None] * num_partitions
        self.asked_at = [0.0] * num_partitions
        self.up_free_s = self.down_free_s = 0.0
        self.begun_s = self.computed_s = self.asked_s = self.answered_s = self.arrived_s = 0.0
        self.link_factor = 1.0
        self.measured_s = 0.0  # of its compute in the step before, as it measures that itself
        self.loss = math.nan
        self.payloads: Sequence[Any] = [True] * num_partitions
        self.missing = self.applied = self.gap = self.read = self.taken = 0
        self.tau = -1
        self.entering = self.over = False


class _Shard:
    """One shard's queues: when its processor and each direction of its link are free."""

    __slots__ = ("free_s", "in_free_s", "out_free_s")

    def __init__(self) -> None:
        self.free_s = self.in_free_s = self.out_free_s = 0.0


class Simulation:
    """One run. Not thread-safe, and to be run once."""

    def __init__(self, setup: Setup, learner: Learner | None = None) -> None:
        self._setup = setup
        self._learner = learner
        self._costs = costs = setup.costs
        self._limit_s = math.inf if setup.limit_s is None else setup.limit_s
        self._num_partitions = setup.num_partitions
        self._shard_of = [index // setup.partitions_per_shard for index in range(setup.num_partitions)]
        self._table = SimulatedTable(setup.consistency, self._shard_of)
        self._shards = [_Shard() for _ in range(setup.num_shards)]
        self._workers = [_Worker(it, setup.num_partitions, costs) for it in range(setup.num_workers)]
        part_bytes = costs.num_bytes / setup.num_partitions
        self._server_s = part_bytes / costs.server_bytes_per_s
        self._take_s = part_bytes * costs.take_s_per_byte
        self._apply_s = part_bytes * costs.apply_s_per_byte
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._cores = SharedCores(costs.cores) if costs.cores else None
        self._looks = 0  # at the cores: one that was superseded is passed over
        self._now_s = self._last_s = 0.0
        self._events = 0
        self._clocks = _Clocks()
        self._steps = StepTable()
        self._evaluations: list[Evaluation] = []

    def run(self) -> SimulatedRun:
        """Runs it to its end."""
        self._table.start(range(self._setup.num_workers))
        for worker in self._workers:
            self._clocks.add(0)
            if self._learner is not None:
                worker.weights = [self._learner.weights(index, 0) for index in range(self._num_partitions)]
            self._begin(worker, 0.0)
        if self._setup.evaluate_s and self._learner is not None:
            self._at(0.0, self._look)
        heap = self._heap
        while heap:
            moment_s, _, do, arguments = heapq.heappop(heap)
            if moment_s > self._limit_s:
                break
            self._now_s = moment_s
            self._events += 1
            do(*arguments)
        return self._outcome()

    # -- a worker's step -------------------------------------------------------------------------------

    def _begin(self, worker: _Worker, now_s: float) -> None:
        slowness = self._setup.stragglers.at(worker.index, worker.clock)
        stands_s = slowness.pause_s
        if worker.newest == 1:  # one that was started again is not stopped again at the same step
            if slowness.restart_s is not None:
                self._at(now_s, self._die, worker, slowness.restart_s)
                return
            if stands_s >= self._costs.lease_s:  # it is evicted meanwhile, and comes again
                self._at(now_s, self._die, worker, stands_s)
                return
        else:
            stands_s = 0.0
        compute_s = self._costs.compute_of(worker.index, worker.clock, self._setup.seed)
        worker.begun_s = now_s
        worker.link_factor = slowness.link_factor
        if self._cores is None:
            worker.computed_s = now_s + stands_s + compute_s * slowness.factor
            self._at(worker.computed_s, self._send, worker)
        else:  # it sleeps first, by what it measured in the step before: no core is taken
            slept_s = (slowness.factor - 1.0) * worker.measured_s
            self._at(now_s + stands_s + slept_s, self._compute, worker, compute_s)

    def _compute(self, worker: _Worker, work_s: float) -> None:
        begun_s = self._now_s

        def over() -> None:
            worker.computed_s = self._now_s
            worker.measured_s = self._now_s - begun_s
            self._occupy(self._costs.exchange_s, lambda: self._send(worker))

        self._occupy(work_s, over)

    def _occupy(self, work_s: float, over: Callable[[], None] | None = None) -> None:
        """A task begins on the shared cores."""
        assert self._cores is not None
        self._cores.begin(self._now_s, work_s, over)
        self._look_at_cores()

    def _look_at_cores(self) -> None:
        assert self._cores is not None
        self._looks += 1
        if (next_s := self._cores.next_s()) < math.inf:
            self._at(next_s, self._advance, self._looks)

    def _advance(self, look: int) -> None:
        if look == self._looks and self._cores is not None:
            self._cores.advance(self._now_s)
            self._look_at_cores()

    def _served_s(self, work_s: float) -> float:
        """How long a shard holds something up: it does not wait for a core, but shares it."""
        if self._cores is None or not work_s:
            return work_s
        taken_s = self._costs.service_share * work_s * self._cores.slowness
        self._occupy(work_s)
        return taken_s

    def _send(self, worker: _Worker) -> None:
        """Its compute has ended: the push leaves, partition after partition."""
        if self._learner is not None:
            worker.payloads, worker.loss = self._learner.gradient(worker.index, worker.clock, worker.weights)
        worker.missing, worker.applied, worker.tau = self._num_partitions, 0, -1
        worker.read = min(worker.versions)
        worker.arrived_s = 0.0
        now_s = self._now_s
        for partition in range(self._num_partitions):
            shard = self._shards[self._shard_of[partition]]
            begun_s = worker.up_free_s = max(worker.up_free_s, now_s)
            worker.up_free_s += worker.frame_s * worker.link_factor
            shard.in_free_s = max(shard.in_free_s, begun_s) + self._server_s
            arrives_s = max(worker.up_free_s, shard.in_free_s) + worker.delay_s * worker.link_factor
            self._at(arrives_s, self._take, worker, worker.incarnation, partition)

    def _take(self, worker: _Worker, incarnation: int, partition: int) -> None:
        """A push has arrived, and the pull behind it."""
        shard = self._shards[self._shard_of[partition]]
        shard.free_s = max(shard.free_s, self._now_s) + self._served_s(self._take_s)
        actions = self._table.push(
            partition,
            worker.index,
            incarnation,
            step=worker.clock,
            version=worker.versions[partition],
            payload=worker.payloads[partition],
            now_s=shard.free_s,
        )
        if partition == 0:
            self._clocks.remove(worker.clock)
            self._clocks.add(worker.clock + 1)
            worker.gap = worker.clock + 1 - self._clocks.least
        self._carry_out(partition, actions)
        self._ask(worker, incarnation, partition, worker.clock + 1)

    def _ask(self, worker: _Worker, incarnation: int, partition: int, clock: int) -> None:
        shard = self._shards[self._shard_of[partition]]
        now_s = worker.asked_at[partition] = max(shard.free_s, self._now_s)
        self._carry_out(
            partition, self._table.pull(partition, worker.index, incarnation, clock=clock, now_s=now_s)
        )

    def _carry_out(self, partition: int, actions: Sequence[Action]) -> None:
        number = self._shard_of[partition]
        shard = self._shards[number]
        for action in actions:
            if isinstance(action, Apply):
                shard.free_s = max(shard.free_s, self._now_s) + self._served_s(self._apply_s)
                self._applied(partition, action)
            elif isinstance(action, Answer):
                departs_s = max(shard.free_s, self._now_s)
                for pull in action.pulls:
                    self._answer(partition, pull.worker, pull.incarnation, action.version, departs_s)
        if self._table.backup:
            self._tell(number)

    def _applied(self, partition: int, action: Apply) -> None:
        for contribution in action.contributions:
            worker = self._workers[contribution.worker]
            worker.applied += 1
            tau = action.version - 1 - contribution.version + self._setup.delay
            if tau > worker.tau:
                worker.tau, worker.read = tau, contribution.version
        if self._learner is not None:
            gradients = [contribution.payload for contribution in action.contributions]
            self._learner.apply(partition, gradients, action.version, self._table.needs(partition))

    def _answer(self, partition: int, number: int, incarnation: int, version: int, departs_s: float) -> None:
        """Weights leave for a worker."""
        worker = self._workers[number]
        if worker.incarnation != incarnation:
            return
        shard = self._shards[self._shard_of[partition]]
        begun_s = max(worker.down_free_s, departs_s)
        worker.down_free_s = begun_s + worker.frame_s * worker.link_factor
        shard.out_free_s = max(shard.out_free_s, departs_s) + self._server_s
        arrives_s = max(worker.down_free_s, shard.out_free_s) + worker.delay_s * worker.link_factor
        worker.versions[partition] = version
        if self._learner is not None:
            worker.weights[partition] = self._learner.weights(partition, version)
        if arrives_s >= worker.arrived_s:
            worker.arrived_s = arrives_s
            worker.asked_s, worker.answered_s = worker.asked_at[partition], departs_s
        worker.missing -= 1
        if not worker.missing:
            self._end(worker)

    def _end(self, worker: _Worker) -> None:
        """All weights of a step are known to arrive: what comes next, from then on."""
        now_s = worker.arrived_s
        clock = worker.clock
        if self._table.aggregates:
            worker.clock = worker.versions[0]
            if worker.clock != clock + 1 and not worker.entering:  # it was late, and goes on at another step
                self._clocks.remove(clock + 1)
                self._clocks.add(worker.clock)
        elif not worker.entering:
            worker.clock += 1
        if now_s <= self._limit_s:
            self._last_s = max(self._last_s, now_s)
            if not worker.entering:
                self._record(worker, clock)
        worker.entering = False
        if self._setup.num_steps is not None and worker.clock >= self._setup.num_steps:
            self._at(now_s, self._leave, worker)
        else:
            self._begin(worker, now_s)

    def _record(self, worker: _Worker, clock: int) -> None:
        self._steps.add(
            (
                worker.index,
                worker.incarnation,
                worker.taken,
                clock,
                worker.read,
                worker.tau,
                worker.gap,
                self._num_partitions - worker.applied,
                worker.begun_s,
                worker.arrived_s,
                worker.computed_s - worker.begun_s,
                worker.asked_s - worker.computed_s,
                worker.answered_s - worker.asked_s,
                worker.arrived_s - worker.answered_s,
                worker.loss,
            )
        )
        worker.taken += 1

    # -- members come and go ---------------------------------------------------------------------------

    def _leave(self, worker: _Worker) -> None:
        incarnation, worker.incarnation, worker.over = worker.incarnation, 0, True
        self._clocks.remove(worker.clock)
        self._change(lambda: self._table.leave(worker.index, incarnation, self._now_s))

    def _die(self, worker: _Worker, back_s: float) -> None:
        """It is killed as it begins a step, or stands still for too long."""
        incarnation, worker.incarnation = worker.incarnation, 0
        self._at(self._now_s + min(self._costs.lease_s, back_s), self._evict, worker, incarnation)
        if back_s < math.inf:
            self._at(self._now_s + back_s, self._enter, worker)
        else:
            worker.over = True

    def _evict(self, worker: _Worker, incarnation: int) -> None:
        self._clocks.remove(worker.clock)
        self._change(lambda: self._table.evict(worker.index, incarnation, self._now_s))

    def _enter(self, worker: _Worker) -> None:
        """It is there again: it takes the weights of the first step that is named to it."""
        worker.newest += 1
        worker.taken = 0

        def join() -> list[Placed]:
            worker.incarnation = worker.newest
            worker.clock, placed = self._table.join(worker.index, worker.newest, self._now_s)
            worker.entering, worker.missing, worker.arrived_s = True, self._num_partitions, 0.0
            self._clocks.add(worker.clock)
            return placed

        def ask() -> None:
            for partition in range(self._num_partitions):
                self._ask(worker, worker.newest, partition, worker.clock)

        self._change(join, ask)

    def _change(self, do: Callable[[], list[Placed]], then: Callable[[], None] | None = None) -> None:
        """On all shards, after all that the coordinator has chosen before it."""
        self._table.hold()
        self._at(self._now_s + self._costs.control_s, self._changed, do, then)

    def _changed(self, do: Callable[[], list[Placed]], then: Callable[[], None] | None) -> None:
        self._carry_out_all(do())
        if then is not None:
            then()
        self._at(self._now_s + self._costs.control_s, self._released)

    def _released(self) -> None:
        self._deliver(self._table.release())

    def _carry_out_all(self, placed: Sequence[Placed]) -> None:
        for partition, action in placed:
            self._carry_out(partition, [action])
        if self._table.backup:
            for shard in range(self._setup.num_shards):
                self._tell(shard)

    # -- backup workers: shard 0 is the coordinator, too -----------------------------------------------

    def _tell(self, shard: int) -> None:
        while (report := self._table.report(shard)) is not None:
            self._at(self._now_s + self._control_s(shard), self._heard, shard, report)

    def _heard(self, shard: int, report: Attendance) -> None:
        self._deliver(self._table.reported(shard, report))

    def _deliver(self, sent: Sequence[tuple[Choice, tuple[int, ...]]]) -> None:
        for choice, shards in sent:
            for shard in shards:
                self._at(self._now_s + self._control_s(shard), self._chosen, shard, choice)

    def _chosen(self, shard: int, choice: Choice) -> None:
        self._carry_out_all(self._table.chosen(shard, choice, self._now_s))

    def _control_s(self, shard: int) -> float:
        return self._costs.control_s if shard else 0.0

    # -- time ------------------------------------------------------------------------------------------

    def _at(self, moment_s: float, do: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._heap, (moment_s, next(self._numbers), do, arguments))

    def _evaluate(self) -> None:
        assert self._learner is not None
        metrics = self._learner.evaluate()
        self._evaluations.append(
            Evaluation(time_s=self._now_s, version=self._table.versions[0], metrics=metrics)
        )

    def _look(self) -> None:
        """Evaluates now and then, until the last worker has left."""
        if not all(worker.over for worker in self._workers):
            self._evaluate()
            self._at(self._now_s + self._setup.evaluate_s, self._look)

    def _outcome(self) -> SimulatedRun:
        if self._setup.limit_s is None:
            assert all(worker.over for worker in self._workers), "somebody waits and nobody will come"
        duration_s = self._last_s if self._setup.limit_s is None else self._limit_s
        if self._learner is not None:
            self._now_s = duration_s
            self._evaluate()
        live = [it for it in self._workers if it.incarnation]
        return SimulatedRun(
            setup=self._setup,
            steps=self._steps,
            duration_s=duration_s,
            versions=tuple(self._table.versions),
            tau=self._table.tau,
            ledgers=self._table.ledgers,
            in_flight=tuple(InFlight(worker=it.index, versions=tuple(it.versions)) for it in live),
            evaluations=tuple(self._evaluations),
            events=self._events,
        )
