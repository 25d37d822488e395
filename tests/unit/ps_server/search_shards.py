"""Shards for a search of all states of the service: real `Shard`s, with tables, tensors and orders as they are.

A node is a shard with the stream on which it follows the coordinator, in one state. It is kept as what a
shard hands off when it stops (`hand_off`), and each input is given to a shard that has taken that up: so in
every state that is reached a shard could stop, and its successor go on. Nodes with the same future are the
same object, and what an input leads to is computed once per node.

A push has a 1 at the place of its worker and step and the optimizer subtracts the mean, so the weights say
which pushes are in them, and how many shared the step: laws 1 and 13 are checked on them at every input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ps_server import hand_off
from ps_server.carry_out import carry_out
from ps_server.follower import Follower
from ps_server.hand_off import Inherited
from ps_server.partition import Partition, Pull
from ps_server.shard import Shard
from ps_server.table_state import CellState, TableState, capture_cell
from ps_wire import frame as wire
from ps_wire.carrier import Message
from ps_wire.errors import CutAborted, PsError
from ps_wire.messages import refused_from_proto
from ps_wire.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

JOB = "j"
NUM_SHARDS = 2
PLACES = 8  # steps of an incarnation that have a place in the weights, and incarnations of a worker
SPEC = TableSpec(
    number=0,
    parameters=(ParameterSpec(name="w", shape=(2048,)),),
    optimizer=OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 1.0),),))),
    buckets=BucketOptions(bucket_bytes=4096, first_bucket_bytes=4096, partition_bytes=4096),
)
CUT = (0, 1)

Input = tuple[Any, ...]  # its name, then what it takes
Output = tuple[Any, ...]
Applied = Mapping[tuple[int, int, int], float]  # (worker, incarnation, step) -> what it has added to the weights


@dataclass(frozen=True, slots=True)
class Held:
    """What a shard holds that it does not hand off: pulls at the gate, a cut, what that keeps back."""

    pulls: tuple[tuple[int, int, int], ...] = ()  # worker, incarnation, clock
    cut: tuple[tuple[int, int], ...] | None = None
    kept: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True)
class Follows:
    """The process as the coordinator knows it."""

    boot: int
    generation: int = 0
    coordinator: int = 0
    done: tuple[int, bytes] = (-1, b"")  # the last order that was carried out


@dataclass(slots=True, eq=False, repr=False)
class ShardNode:
    number: int
    index: int
    generation: int
    facts: dict[str, Any] | None  # of the job; None: it holds none
    tensors: dict[str, torch.Tensor]
    held: Held
    follows: Follows
    version: int
    applied: Applied
    taken: frozenset[tuple[int, int]]  # of these: worker, step
    live: dict[int, int]  # members that are not fenced: worker -> incarnation
    staged: frozenset[tuple[int, int]]  # worker, step
    mixed_steps: int
    memo: dict[Input, tuple[ShardNode, tuple[Output, ...]]] = field(default_factory=dict)


@dataclass(slots=True)
class Kept:
    """An `Outlet`: what one incarnation of a worker is sent."""

    worker: int
    incarnation: int
    outputs: list[Output]

    def send(self, message: Message) -> None:
        frame = message.frame
        match frame.kind:
            case wire.Kind.PULLED:
                self.outputs.append(("pulled", self.worker, self.incarnation, frame.version))
            case wire.Kind.ACK:
                self.outputs.append(("ack", self.worker, self.incarnation, frame.step))
            case wire.Kind.REFUSE:
                refused = pb.Refused.FromString(bytes(frame.meta))
                error = type(refused_from_proto(refused)).__name__
                self.outputs.append(("refused", self.worker, self.incarnation, error))
            case kind:
                raise AssertionError(kind)


@dataclass(slots=True)
class Shards:
    """All nodes that were met, and all parts of snapshots that they have taken."""

    aggregates: bool
    repeats: bool = False  # orders may come again: what was answered is kept
    known: dict[object, ShardNode] = field(default_factory=dict)
    parts: list[CellState] = field(default_factory=list)
    part_numbers: dict[object, int] = field(default_factory=dict)
    snapshots: dict[str, tuple[int, ...]] = field(default_factory=dict)  # name -> part of each shard

    def fresh(self, index: int, boot: int, generation: int = 0) -> ShardNode:
        """A process that has just started with nothing."""
        return self._node(_shard(index, generation), Held(), Follows(boot))

    def stopped(self, node: ShardNode, generation: int | None = None) -> ShardNode:
        """Its successor, which has taken up what it handed off; what it could not is said again."""
        shard = self._made(node)
        shard.generation = node.generation if generation is None else generation
        return self._node(shard, Held(), node.follows)

    def step(self, node: ShardNode, given: Input) -> tuple[ShardNode, tuple[Output, ...]]:
        """The node after an input, and what came out."""
        found = node.memo.get(given)
        if found is None:
            visit = _Visit(self, self._made(node), node)
            visit.take_up(node.held)
            visit.outputs.clear()
            visit.give(given)
            after = self._node(visit.shard, visit.held(), visit.follows)
            visit.check(after)
            found = node.memo[given] = after, tuple(visit.outputs)
        return found

    def part(self, state: CellState) -> int:
        """The number of a part of a snapshot."""
        clocks = tuple(sorted(state.machine.members.items()))
        key = state.machine.version, clocks, tuple(sorted(_applied(state.weights).items()))
        if key not in self.part_numbers:
            self.part_numbers[key] = len(self.parts)
            self.parts.append(state)
        return self.part_numbers[key]

    def _made(self, node: ShardNode) -> Shard:
        shard = _shard(node.index, node.generation)
        shard.read_part = lambda _job, name, plan, _spec: TableState(
            cells={
                part.index: self.parts[self.snapshots[name][node.index]]
                for part in plan.partitions_of_shard(node.index)
            }
        )
        if node.facts is not None:
            hand_off._take_job(shard, node.facts, node.tensors)  # type: ignore[arg-type]
        return shard

    def _node(self, shard: Shard, held: Held, follows: Follows) -> ShardNode:
        entry = next(iter(shard.jobs()), None)
        tensors: dict[str, torch.Tensor] = {}
        facts = hand_off._job_facts(entry, tensors) if entry is not None else None
        machine = machine_of(shard)
        applied = _applied(weights_of(shard)) if machine is not None else {}
        key = (
            shard.index,
            shard.generation,
            json.dumps(_without_counters(facts), sort_keys=True),
            tuple(sorted(applied.items())),
            held,
            follows,
        )
        if key not in self.known:
            members = machine._members.items() if machine is not None else ()
            self.known[key] = ShardNode(
                number=len(self.known),
                index=shard.index,
                generation=shard.generation,
                facts=facts,
                tensors=tensors,
                held=held,
                follows=follows,
                version=machine.version if machine is not None else 0,
                applied=applied,
                taken=frozenset((worker, step) for worker, _, step in applied),
                live={worker: it.incarnation for worker, it in members if not it.fenced},
                staged=frozenset((it.worker, it.step) for it in machine.staged) if machine else frozenset(),
                mixed_steps=machine.mixed_steps if machine is not None else 0,
            )
        return self.known[key]


def _shard(index: int, generation: int) -> Shard:
    shard = Shard(index=index, num_shards=NUM_SHARDS, memory_limit_bytes=None)
    shard.generation = generation
    return shard


def machine_of(shard: Shard) -> Partition | None:
    """The state machine of the one partition that a shard has; None: it has no table."""
    entry = next(iter(shard.jobs()), None)
    return entry.tables[0].cells()[0].machine if entry is not None and entry.tables else None


def weights_of(shard: Shard) -> torch.Tensor:
    """Of that partition."""
    return shard.table(JOB, 0).cells()[0].values.now


def _applied(weights: torch.Tensor) -> Applied:
    places = weights.nonzero().flatten().tolist()
    return {
        (place // PLACES**2, place // PLACES % PLACES, place % PLACES): weights[place].item()
        for place in places
    }


def _without_counters(facts: dict[str, Any] | None) -> object:
    """What decides the future of a shard."""
    if facts is None:
        return None
    tables = []
    for table in facts["tables"]:
        partitions = [
            {name: it for name, it in part.items() if name not in ("ledgers", "tau")}
            for part in table["state"]["partitions"]
        ]
        tables.append({**table, "state": partitions})
    return {**facts, "tables": tables}


def gradient(worker: int, incarnation: int, step: int) -> bytes:
    """What a worker pushes: a 1 at its place; incarnations after a rollback have those of the first ones."""
    values = torch.zeros(1024)
    values[(worker * PLACES + incarnation % PLACES) * PLACES + step] = 1.0
    return values.numpy().tobytes()


def start(shards: Shards, consistency: str, workers: int) -> tuple[ShardNode, ShardNode]:
    """Both, with a table that has just started."""
    job = spec_pb2.Job(name=JOB, consistency=consistency, num_workers=workers, nonfinite="error")
    nodes = []
    for index in range(NUM_SHARDS):
        shard = _shard(index, 1 + index)
        for worker in range(workers):
            shard.admit(
                job=JOB,
                consistency_text=job.consistency,
                num_workers=workers,
                worker=worker,
                incarnation=1,
                clocks={},
                reader=False,
            )
        shard.open_table(JOB, SPEC)
        cell = shard.table(JOB, 0).cells()[0]
        cell.load(torch.zeros_like(cell.values.now))
        shard.start_table(JOB, 0)
        nodes.append(shards._node(shard, Held(), Follows(index, 1 + index, 1)))
    return nodes[0], nodes[1]


@dataclass(slots=True)
class _Visit:
    """One input to a node, and what comes out of it."""

    shards: Shards
    shard: Shard
    before: ShardNode
    follows: Follows = field(init=False)
    outputs: list[Output] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)  # pushes and pulls that a cut may have kept

    def __post_init__(self) -> None:
        self.follows = self.before.follows

    def take_up(self, held: Held) -> None:
        """What is not handed off."""
        machine = machine_of(self.shard)
        if machine is None:
            return
        cell = self.shard.table(JOB, 0).cells()[0]
        for worker, incarnation, clock in held.pulls:
            machine._waiting[worker] = Pull(worker=worker, incarnation=incarnation, clock=clock)
            cell._outlets[worker] = Kept(worker, incarnation, self.outputs)
        if held.cut is not None:
            cell.cut._cut.key, cell.cut._cut._limits = CUT, dict(held.cut)
            cell.cut._taker = CUT, self._take
        for given in held.kept:
            self.give(given)

    def held(self) -> Held:
        """See `Held`."""
        machine = machine_of(self.shard)
        if machine is None:
            return Held()
        cut = self.shard.table(JOB, 0).cells()[0].cut._cut
        kept = {(it.worker, it.step, it.pushes) for it in cut._kept}
        return Held(
            pulls=tuple((it.worker, it.incarnation, it.clock) for it in machine.waiting),
            cut=None if cut._limits is None else tuple(sorted(cut._limits.items())),
            kept=tuple(it for it in self.inputs if (it[1], it[3], it[0] == "push") in kept),
        )

    def give(self, given: Input) -> None:
        name, *what = given
        getattr(self, f"_on_{name}")(given, *what)

    def _on_push(self, given: Input, worker: int, incarnation: int, step: int, abstains: bool) -> None:
        content: dict[str, Any] = {"kind": wire.Kind.ABSTAIN}
        if not abstains:
            payload = gradient(worker, incarnation, step)
            content = {"kind": wire.Kind.PUSH, "payload": payload, "weight": 1.0}
        self._frame(given, worker, incarnation, step=step, version=step, **content)

    def _on_pull(self, given: Input, worker: int, incarnation: int, clock: int) -> None:
        self._frame(given, worker, incarnation, kind=wire.Kind.PULL, step=clock)

    def _frame(self, given: Input, worker: int, incarnation: int, **fields: Any) -> None:
        """As over a connection that is made now; one that was made before is retired where this is refused."""
        try:
            self.shard.make_token(JOB, worker, incarnation)
            table = self.shard.table(JOB, 0)
            (index,) = table.partitions()
            meta = index.to_bytes(4, "little") if fields["kind"] is not wire.Kind.PUSH else b""
            frame = wire.Frame(worker=worker, incarnation=incarnation, partition=index, meta=meta, **fields)
            member = self.shard.is_member(JOB, worker, incarnation)
            self.inputs.append(given)
            table.receive(frame, Kept(worker, incarnation, self.outputs), member=member)
        except PsError as error:
            self.outputs.append(("refused", worker, incarnation, type(error).__name__))

    def _on_order(self, _: Input, text: bytes) -> None:
        order = pb.Order.FromString(text)
        number, answer = self.follows.done
        if order.number != number:
            done = carry_out(self.shard, order)
            answer = done.SerializeToString()
            if self.shard.index > 0:
                follower = follower_of(self.shard, self.follows)
                follower._keep(order, done)
                self._note(follower, (order.number, answer) if self.shards.repeats else (-1, b""))
        self.outputs.append(("done", answer))

    def _note(self, follower: Follower, done: tuple[int, bytes]) -> None:
        register = follower._register
        self.follows = Follows(self.follows.boot, register.generation, register.coordinator, done)

    def _on_granted(self, _: Input, generation: int, coordinator: int) -> None:
        follower = follower_of(self.shard, self.follows)
        follower._begin(pb.Granted(generation=generation, coordinator=coordinator))
        self._note(follower, self.follows.done)

    def _on_save(self, _: Input, limits: tuple[tuple[int, int], ...]) -> None:
        try:
            table = self.shard.table(JOB, 0)
            table.cells()[0].cut.save(CUT, dict(limits), self._take)
        except CutAborted:
            self.outputs.append(("aborted",))
        except PsError:
            self.outputs.append(("aborted",))
        else:
            self.outputs.append(("armed",))

    def _on_end(self, _: Input) -> None:
        if machine_of(self.shard) is not None:
            self.shard.table(JOB, 0).cells()[0].cut.end(CUT)

    def _take(self) -> None:
        self.outputs.append(("taken", self.shards.part(capture_cell(self.shard.table(JOB, 0).cells()[0]))))

    # -- laws ----------------------------------------------------------------------------------------

    def check(self, after: ShardNode) -> None:
        """What holds between two states of a shard."""
        before, machine = self.before, machine_of(self.shard)
        assert after.generation >= before.generation
        if machine is None:
            return
        entry = next(iter(self.shard.jobs()))
        assert all(it.incarnation > entry.floor for it in machine.staged), "nothing of an older generation"
        if self._is_other(entry.floor):
            return
        assert after.version >= before.version, "versions never go back"
        assert before.applied.items() <= after.applied.items(), ("applied once", before.applied, after.applied)
        new = {key: value for key, value in after.applied.items() if key not in before.applied}
        if not self.shards.aggregates:
            assert all(value == -1.0 for value in new.values()), new
            return
        assert len(after.taken) == len(after.applied), "a step of a worker counts once"
        for step in {step for _, _, step in new}:
            shares = [value for (_, _, taken), value in new.items() if taken == step]
            assert before.version <= step < after.version
            assert shares == [torch.tensor(-1.0).div(len(shares)).item()] * len(shares), (step, new)

    def _is_other(self, floor: int) -> bool:
        """Whether the shard holds another time of the job than before."""
        return self.before.facts is None or self.before.facts["floor"] != floor


def follower_of(shard: Shard, follows: Follows) -> Follower:
    """The real one, as it registers."""
    return Follower(
        shard,
        address="coordinator:1",
        advertise=f"shard{follows.boot}:1",
        inherited=Inherited(
            boot=follows.boot.to_bytes(4, "big"),
            generation=follows.generation,
            coordinator=follows.coordinator,
        ),
        on_ready=lambda _: None,
        on_fenced=lambda _: None,
    )


def register_of(node: ShardNode) -> bytes:
    """How a shard registers."""
    shard = _shard(node.index, node.generation)
    return follower_of(shard, node.follows)._register.SerializeToString(deterministic=True)
