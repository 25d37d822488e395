"""Real `ShardTable`s, spoken to in encoded frames, and torch on whole parameters to compare them with.

The reference averages in numpy, in rank order, and runs one torch optimizer over whole parameters: it shares
no code with `average`, `optimizers` or `cell`. Every parameter is a param-group of its own there, because
torch's fused SGD fails where parameters of one group get their first gradient at different steps.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ps_server.agreement.attendance import CatchUp, Choose, TableAttendance
from ps_server.agreement.chooser import Chooser, Sent
from ps_server.agreement.clipping import Norm, holders
from ps_server.agreement.gate import gate_of
from ps_server.agreement.messages import Report
from ps_server.coordinator.fleet.ballots import Ballots
from ps_server.shard.optimizer.piece_optimizer import (
    KNOWN,
)
from ps_server.shard.table.table import ShardTable
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Message
from ps_wire.frames.messages import hyperparameters_to_proto
from ps_wire.spec.consistency import BSP, Consistency
from ps_wire.spec.nonfinite import NonFinite
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Group, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec

SHAPES = ((), (10,), (33, 17), (5000,), (70000,), (3, 1))
SMALL = BucketOptions(bucket_bytes=1 << 16, first_bucket_bytes=1 << 12, partition_bytes=8 * 4096)

Gradients = Sequence[torch.Tensor | None]  # one per parameter, whole


class Kept(list[bytes]):
    """An `Outlet` that keeps what it is given."""

    sent_bytes = queued_bytes = 0

    def send(self, message: Message) -> None:
        self.append(message.encoded())

    def write_along(self, *_: object) -> bool:
        return False

    def wait_room(self) -> None:
        """There is room."""

    def sever(self) -> None:
        """What was given stays."""

    def take(self) -> list[wire.Frame]:
        """The frames since the last call."""
        frames = [wire.decode(message) for message in self]
        self.clear()
        return frames


def group(**hyper: object) -> Group:
    """Hyper-parameters of one param-group, as they travel."""
    return tuple(sorted(hyper.items()))  # type: ignore[arg-type]


def changed(hyper: Hyperparameters, **values: object) -> Hyperparameters:
    """The same with other values, in every group."""
    return Hyperparameters(tuple(group(**{**dict(old), **values}) for old in hyper.groups))


def table_spec(
    optimizer: str,
    *groups: Group,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtype: str = "float32",
    buckets: BucketOptions = SMALL,
    number: int = 0,
    clip_grad_norm: float | None = None,
) -> TableSpec:
    """A table whose parameters are dealt to the groups in turn."""
    return TableSpec(
        number=number,
        parameters=tuple(
            ParameterSpec(name=f"p{place}", shape=shape, dtype=dtype, group=place % len(groups))
            for place, shape in enumerate(shapes)
        ),
        optimizer=OptimizerSpec(name=optimizer, hyperparameters=Hyperparameters(groups)),
        buckets=buckets,
        clip_grad_norm=clip_grad_norm,
    )


def draw(spec: TableSpec, seed: int) -> list[torch.Tensor]:
    """Normal numbers in the shape of every parameter."""
    numbers = np.random.default_rng(seed)
    return [
        torch.from_numpy(np.array(numbers.standard_normal(item.shape), dtype=item.dtype))
        for item in spec.parameters
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What one worker pushes at one step; without gradients it abstains."""

    worker: int
    gradients: Gradients | None
    weight: float = 1.0


class Servers:
    """One table over k shards with all its workers, who have joined."""

    def __init__(
        self,
        spec: TableSpec,
        weights: Sequence[torch.Tensor],
        *,
        num_shards: int = 1,
        num_workers: int = 1,
        consistency: Consistency = BSP(),  # noqa: B008 - frozen
        nonfinite: NonFinite = NonFinite.ERROR,
        seed: int = 0,
    ) -> None:
        """Loads `weights` and starts; frames arrive in an order drawn from `seed`."""
        self.ballots = Ballots(num_shards)
        self.ballots.opened("j", spec, 1)
        self.chosen: dict[int, frozenset[int]] = {}
        self.caught: list[CatchUp] = []
        self.spec = spec
        self.plan = Plan(spec, num_shards)
        self._chooser = Chooser(gate_of(consistency).backup, holders(self.plan))
        self._choices: deque[Sent] = deque()
        self._choosing = False
        self.deaf: set[int] = set()  # shards that choices do not reach at the moment
        self.shards = [
            ShardTable(
                job="j",
                spec=spec,
                plan=self.plan,
                shard=shard,
                gate=gate_of(consistency),
                nonfinite=nonfinite,
                opening=1,
                report=partial(self.take, shard),
            )
            for shard in range(num_shards)
        ]
        self.outlets = [Kept() for _ in range(num_workers)]
        self._order = random.Random(seed)
        self._hyper: dict[int, tuple[int, Hyperparameters]] = {}
        for shard in self.shards:
            for worker in range(num_workers):
                shard.join(worker, 1, 0)
        buckets = self._flat(weights)
        for index in range(self.plan.num_partitions):
            payload = self._bytes(buckets, index)
            self._give(index, wire.Frame(kind=wire.Kind.LOAD, partition=index, payload=payload, worker=0))
        for shard in self.shards:
            shard.start()
        self.outlets[0].clear()

    def take(self, shard: int, report: Report) -> None:
        """What the coordinator makes of a report."""
        if isinstance(report, Norm):
            self.report(shard, report)
        else:
            self.attend(shard, report)

    def report(self, shard: int, norm: Norm) -> None:
        """What it makes of a norm."""
        for made in self.ballots.reported(shard, norm):
            for index in made.shards:
                self.shards[index].closer.decide(made.order.decide.step, made.order.decide.scale)

    def attend(self, shard: int, attended: TableAttendance) -> None:
        """What the coordinator chooses after a report, brought to all shards in one order."""
        self._choices += self._chooser.reported(shard, attended.report)
        if self._choosing:
            return
        self._choosing = True
        while self._choices:
            choice, shards = self._choices.popleft()
            if isinstance(choice, Choose):
                assert self.chosen.setdefault(choice.step, choice.workers) == choice.workers
            else:
                self.caught.append(choice)
            for index in set(shards) - self.deaf:
                self.shards[index].closer.choose(choice)
        self._choosing = False

    def leave(self, worker: int) -> None:
        """A worker is no member of any shard any more."""
        for shard in self.shards:
            shard.leave(worker, 1)

    # -- what workers do -------------------------------------------------------------------------------

    def step(self, step: int, pushes: Sequence[Push], hyper: Hyperparameters) -> None:
        """Every push on every partition, each worker's frames and all workers' in a drawn order."""
        for push in pushes:
            self._say_hyper(push.worker, hyper)
        frames = [frame for push in pushes for frame in self.frames(step, push)]
        self._order.shuffle(frames)
        for frame in frames:
            self.give(frame)

    def give(self, frame: wire.Frame) -> None:
        """One frame arrives."""
        self._give(frame.partition, frame)
        for shard in self.shards:  # one that holds all chooses by itself
            chooser = shard.closer._chooser
            if chooser is not None and (choice := chooser.last) is not None:
                self.chosen.setdefault(choice.step, choice.workers)

    def _say_hyper(self, worker: int, hyper: Hyperparameters) -> None:
        number, said = self._hyper.get(worker, (0, self.spec.optimizer.hyperparameters))
        if hyper == said:
            return
        self._hyper[worker] = number + 1, hyper
        meta = hyperparameters_to_proto(hyper).SerializeToString()
        for shard in self.shards:
            frame = wire.Frame(kind=wire.Kind.HYPER, worker=worker, hyper=number + 1, meta=meta)
            shard.receive(wire.decode(wire.encode(frame)), self.outlets[worker], member=True)

    def frames(self, step: int, push: Push) -> list[wire.Frame]:
        """A push, a frame per partition."""
        common = {"worker": push.worker, "incarnation": 1, "step": step}
        if push.gradients is None:
            return [
                wire.Frame(kind=wire.Kind.ABSTAIN, partition=index, meta=struct.pack("<I", index), **common)
                for index in range(self.plan.num_partitions)
            ]
        have = [gradient is not None for gradient in push.gradients]
        buckets = self._flat(push.gradients)
        frames = []
        for index in range(self.plan.num_partitions):
            present = [have[piece.parameter] for piece in self.plan.pieces(self.plan.partition(index))]
            frames.append(
                wire.Frame(
                    kind=wire.Kind.PUSH,
                    partition=index,
                    weight=push.weight,
                    hyper=self._hyper.get(push.worker, (0,))[0],
                    meta=b"" if all(present) else bitmap(present),
                    payload=self._bytes(buckets, index) if any(present) else b"",
                    **common,
                )
            )
        return frames

    def pull(self, worker: int, step: int, *, read: bool = False) -> list[torch.Tensor] | None:
        """The weights that come at this clock; None while the gate is shut for some of them."""
        self.outlets[worker].clear()
        self.ask(worker, step, read=read)
        return self.pulled(worker)

    def ask(self, worker: int, step: int, *, read: bool = False) -> None:
        """A PULL of everything; what is answered is in the worker's outlet."""
        for number, shard in enumerate(self.shards):
            indices = [item.index for item in self.plan.partitions_of_shard(number)]
            if not indices:
                continue
            frame = wire.Frame(
                kind=wire.Kind.PULL,
                flags=wire.READ if read else 0,
                step=step,
                worker=worker,
                incarnation=1,
                meta=struct.pack(f"<{len(indices)}I", *indices),
            )
            shard.receive(wire.decode(wire.encode(frame)), self.outlets[worker], member=True)

    def pulled(self, worker: int) -> list[torch.Tensor] | None:
        """The weights in what a worker was sent last; None where partitions are missing."""
        return self.weights_in(self.outlets[worker].take())

    def weights_in(self, frames: Sequence[wire.Frame]) -> list[torch.Tensor] | None:
        """The weights in such frames; None where partitions are missing."""
        frames = [frame for frame in frames if frame.kind is wire.Kind.PULLED]
        if {frame.partition for frame in frames} != set(range(self.plan.num_partitions)):
            return None
        buckets = self._flat([None] * len(self.spec.parameters))
        for frame in frames:
            self._slice(buckets, frame.partition).copy_(
                torch.frombuffer(bytearray(frame.payload), dtype=buckets[0].dtype)
            )
        return [view.clone() for view in self._views(buckets)]

    # -- layout ----------------------------------------------------------------------------------------

    def _give(self, index: int, frame: wire.Frame) -> None:
        shard = self.plan.partition(index).shard
        message = wire.decode(wire.encode(frame))
        self.shards[shard].receive(message, self.outlets[frame.worker], member=True)

    def _flat(self, values: Gradients) -> list[torch.Tensor]:
        buckets = [
            torch.zeros(bucket.numel, dtype=getattr(torch, bucket.dtype)) for bucket in self.plan.buckets
        ]
        for view, value in zip(self._views(buckets), values, strict=True):
            if value is not None:
                view.copy_(value)
        return buckets

    def _views(self, buckets: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        views: dict[int, torch.Tensor] = {}
        for bucket, flat in zip(self.plan.buckets, buckets, strict=True):
            for place in bucket.placements:
                shape = self.spec.parameters[place.parameter].shape
                views[place.parameter] = flat[place.offset : place.offset + place.numel].view(shape)
        return [views[place] for place in range(len(views))]

    def _slice(self, buckets: Sequence[torch.Tensor], index: int) -> torch.Tensor:
        part = self.plan.partition(index)
        return buckets[part.bucket][part.offset : part.offset + part.numel]

    def _bytes(self, buckets: Sequence[torch.Tensor], index: int) -> bytes:
        return self._slice(buckets, index).numpy().tobytes()


def bitmap(present: Sequence[bool]) -> bytes:
    """Bit i is piece i, lowest bit first."""
    return bytes(np.packbits(np.array(present, dtype=bool), bitorder="little"))


def same(ours: Sequence[torch.Tensor] | None, theirs: Sequence[torch.Tensor]) -> bool:
    """Whether all tensors are equal to the bit."""
    return ours is not None and all(
        a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(ours, theirs, strict=True)
    )


def defaults(name, **hyper):
    """What a worker would say of this optimizer."""
    made = KNOWN[name].cls([torch.zeros(1)], **hyper)
    execution = {"foreach", "fused", "capturable", "differentiable"}
    return group(**{key: value for key, value in made.defaults.items() if key not in execution})
