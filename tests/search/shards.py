"""What a search of all states of the service knows of shards: their states, as values.

A node is a shard with the stream on which it follows the coordinator, in one state. It is kept as what a
shard hands off when it stops (`hand_off`). `search_shard_visits` has what an input does, `search_shard_nodes`
all nodes that were met.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ps_server.shard.follower import Follower
from ps_server.shard.hand_off import Inherited
from ps_server.shard.partition.cell_state import CellState
from ps_server.shard.partition.machine import StepMachine
from ps_server.shard.shard import Shard
from ps_wire.errors import ServerNotReady
from ps_wire.frames.messages import refused_to_proto
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_wire.v1 import coordinator_pb2 as pb

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
Applied = Mapping[
    tuple[int, int, int], float
]  # (worker, incarnation, step) -> what it has added to the weights


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
class Parts:
    """Of snapshots that shards have taken.

    Attributes:
        snapshots: name -> number of the part of each shard.
    """

    known: list[CellState] = field(default_factory=list)
    snapshots: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _numbers: dict[object, int] = field(default_factory=dict)

    def number(self, state: CellState) -> int:
        """Of a part; two with the same future have the same."""
        members = sorted(state.machine.members.items())
        clocks = tuple((worker, it.incarnation, it.clock) for worker, it in members)
        applied = tuple(sorted(applied_of(state.tensors.weights).items()))
        key = tuple(state.tensors.parts), state.machine.version, clocks, applied
        if key not in self._numbers:
            self._numbers[key] = len(self.known)
            self.known.append(state)
        return self._numbers[key]


def shard_of(index: int, generation: int) -> Shard:
    """One that holds nothing."""
    shard = Shard(index=index, num_shards=NUM_SHARDS, memory_limit_bytes=None)
    shard.generation = generation
    return shard


def machine_of(shard: Shard) -> StepMachine | None:
    """The state machine of the one partition that a shard has; None: it has no table."""
    entry = next(iter(shard.jobs()), None)
    return entry.tables[0].cells()[0].machine if entry is not None and entry.tables else None


def weights_of(shard: Shard) -> torch.Tensor:
    """Of that partition."""
    return shard.table(JOB, 0).cells()[0].values.now


def applied_of(weights: torch.Tensor) -> Applied:
    """What the weights say of pushes that are in them."""
    places = weights.nonzero().flatten().tolist()
    return {
        (place // PLACES**2, place // PLACES % PLACES, place % PLACES): weights[place].item()
        for place in places
    }


def follower_of(shard: Shard, follows: Follows) -> Follower:
    """The real one, as it registers."""
    return Follower(
        shard,
        address="coordinator:1",
        advertise=f"shard{follows.boot}:1",
        inherited=Inherited(
            boot=follows.boot.to_bytes(4, "big"),
            coordinator=follows.coordinator,
        ),
        on_ready=lambda _: None,
        on_fenced=lambda _: None,
        on_misplaced=lambda _: None,
    )


def register_of(node: ShardNode) -> bytes:
    """How a shard registers."""
    shard = shard_of(node.index, node.generation)
    return follower_of(shard, node.follows).register().SerializeToString(deterministic=True)


def lets_in(text: bytes) -> bool:
    """Whether an order is to let somebody in."""
    return pb.Order.FromString(text).HasField("admit")


def refusal_of(text: bytes) -> bytes:
    """A shard's answer to an order, that it does not carry it out now."""
    refused = refused_to_proto(ServerNotReady("not now"))
    done = pb.OrderDone(number=pb.Order.FromString(text).number, refused=refused)
    return done.SerializeToString(deterministic=True)
