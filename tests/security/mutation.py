"""Messages that are nearly right, and some that are nothing at all, drawn from a seed.

A field has a value that means something, or one at an extreme. What is drawn is then sent as it is, with bits
flipped, cut off, doubled, or not at all: then random bytes are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ps_wire.frames.frame import PROTOCOL, PULLS, RANKS, SHARED, Frame, Kind, encode
from ps_wire.frames.messages import table_to_proto
from ps_wire.spec.table import Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_wire.v1 import coordinator_pb2, shard_pb2, spec_pb2
from ps_wire.v1 import coordinator_pb2 as pb

MAX_DEPTH = 5
UNSIGNED = (0, 1, 2, 3, 63, 64, 1 << 31, (1 << 32) - 1, 1 << 62, 1 << 63, (1 << 64) - 1)
SIGNED = (*UNSIGNED[:6], -1, -5, (1 << 63) - 1, -(1 << 63))
NUMBERS = (0.0, 1.0, -1.0, 5.0, math.nan, math.inf, -math.inf, 1e308, 5e-324, -0.0)
TEXTS = (
    *("", "a", "w", "bsp", "asp", "ssp:3", "ssp:99999999999999999999", "bsp+1", "error", "skip", "nan"),
    *("SGD", "Adam", "lr", "betas", "float32", "float64", "int7", "step", "exp_avg", "final", "live"),
    *("start/0", "optimizer/0", "snapshot/0", "cut", "../../etc/passwd", "manifest.json", "\x00", "%s%n"),
    *("a\nWARNING forged", "\x1b[2J\x1b]0;x\x07", "\u202e\u2028", "\U0001f600", "x" * 64, "x" * 65),
)
FLAGS = (0, 0, 0, *(1 << bit for bit in range(8)), SHARED | RANKS, SHARED | RANKS | PULLS)
_TYPES = FieldDescriptor


@dataclass(frozen=True, slots=True)
class Method:
    """One call of the services.

    Attributes:
        path: as gRPC has it.
        takes: class of its requests.
        many: whether the client streams.
    """

    path: str
    takes: type[Message]
    many: bool


METHODS = tuple(
    Method(f"/{service.full_name}/{it.name}", GetMessageClass(it.input_type), it.client_streaming)
    for file in (coordinator_pb2, shard_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for it in service.methods
)


def talks(job: str) -> dict[str, list[Message]]:
    """What calls of a job's own say in order when all is well, by the path of the call."""
    who = spec_pb2.Job(name=job, consistency="asp", num_workers=4, min_workers=1)
    spec = TableSpec(
        number=0,
        parameters=(ParameterSpec(name="w", shape=(40, 20)), ParameterSpec(name="b", shape=(20,))),
        optimizer=OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),))),
        stages=(0, 1),
    )
    progress = pb.Progress(step=3, samples=12, waited_s=0.5, metrics={"loss": 1.0}, waits="for worker 1")
    member = [
        pb.MemberRequest(join=pb.Join(protocol=PROTOCOL, job=who, host="here", pid=7, lease_s=5.0)),
        pb.MemberRequest(number=1, make_table=pb.MakeTable(table=table_to_proto(spec))),
        pb.MemberRequest(number=2, uploaded=pb.Uploaded(table=0)),
        pb.MemberRequest(heartbeat=pb.Heartbeat(heard=2, progress=progress)),
        pb.MemberRequest(number=3, cut_ready=pb.CutReady(number=1, steps={0: 3})),
        pb.MemberRequest(number=4, holding=pb.Holding(number=1, steps={0: 3})),
        pb.MemberRequest(number=5, finish=pb.Finish(progress=progress)),
        pb.MemberRequest(number=6, leave=pb.Leave(reason="done", progress=progress)),
    ]
    read = [
        pb.ReadRequest(number=1, join=pb.ReadJoin(protocol=PROTOCOL, job=job, host="here", pid=7)),
        pb.ReadRequest(number=2, table=0),
        pb.ReadRequest(number=3, cut=0),
        pb.ReadRequest(number=4, done=3),
        pb.ReadRequest(number=5, state=0),
    ]
    key = pb.StateKey(job=job, worker=0, incarnation=1, name="start/0")
    mark = pb.Mark(step=1, samples=2)
    rank = {"protocol": PROTOCOL, "job": job, "size": 2, "host": "here", "machine": "m"}
    calls: dict[str, list[Message]] = {
        "Member": list(member),
        "Read": list(read),
        "PutState": [pb.StateChunk(key=key, data=b"x" * 20), pb.StateChunk(data=b"y" * 20)],
        "GetState": [pb.GetStateRequest(key=key)],
        "Share": [pb.ShareRequest(job=job, worker=0, incarnation=1, samples=100, begins=True, mark=mark)],
        "Collect": [
            pb.CollectRequest(job=job, worker=0, incarnation=1, number=0, form="x", op="mean", values=[1.0])
        ],
        "BeginEpoch": [pb.EpochRequest(job=job, worker=0, incarnation=1, epoch=1, stop=3)],
        "Meet": [
            pb.MeetRequest(**rank, rank=1, process="b"),
            pb.MeetRequest(**rank, rank=0, process="a", address="127.0.0.1:5000"),
        ],
        "Snapshot": [pb.SnapshotRequest(job=job)],
        "Open": [shard_pb2.OpenRequest(job=job, worker=0, incarnation=1, rank=1)],
        "Dump": [shard_pb2.DumpRequest(key=shard_pb2.TableKey(job=job, worker=0, incarnation=1, table=0))],
    }
    return {
        method.path: calls[name] for method in METHODS if (name := method.path.rpartition("/")[2]) in calls
    }


class Mutation:
    """Draws messages; the same from the same seed."""

    def __init__(self, seed: int | str, jobs: Sequence[str]) -> None:
        """`jobs` are names that texts are drawn from, too; the first one is that of who attacks."""
        self._random = random.Random(seed)
        self._talks = talks(jobs[0])
        self._texts = (*TEXTS, *jobs * 4)

    def method(self) -> Method:
        """One of all."""
        return self._random.choice(METHODS)

    def requests(self, method: Method) -> list[bytes]:
        """What one call sends: for a stream several, in any order."""
        if method.path in self._talks and self._random.random() < 0.6:
            return self._nearly(self._talks[method.path])
        count = self._random.choice((1, 1, 2, 3, 6)) if method.many else 1
        return [self.request(method.takes) for _ in range(count)]

    def _nearly(self, talk: Sequence[Message]) -> list[bytes]:
        """A talk in which some values are others, some messages are missing, doubled or in another order."""
        draw = self._random
        said = [message for message in talk if draw.random() < 0.9]
        if draw.random() < 0.2:
            draw.shuffle(said)
        if draw.random() < 0.2 and said:
            said.insert(draw.randrange(len(said)), draw.choice(said))
        sent = []
        for message in said or talk[:1]:
            changed = type(message)()
            changed.CopyFrom(message)
            if draw.random() < 0.5:
                self._change(changed)
            sent.append(self._spoilt(changed.SerializeToString(), keeps=0.95))
        return sent

    def _change(self, message: Any) -> None:
        """Draws one value anew, somewhere in it."""
        fields = message.DESCRIPTOR.fields
        field = self._random.choice([field for field, _ in message.ListFields()] or fields)
        inner = field.type == _TYPES.TYPE_MESSAGE and not field.message_type.GetOptions().map_entry
        if inner and not field.is_repeated and self._random.random() < 0.9:
            self._change(getattr(message, field.name))
        elif (
            inner and field.is_repeated and len(getattr(message, field.name)) and self._random.random() < 0.9
        ):
            self._change(self._random.choice(getattr(message, field.name)))
        else:
            message.ClearField(field.name)
            self._set(message, field, 1)

    def request(self, cls: type[Message]) -> bytes:
        """One message, or what is none."""
        if self._random.random() < 0.05:
            return self._random.randbytes(self._random.choice((0, 1, 7, 300)))
        message = cls()
        self._fill(message, 0)
        return self._spoilt(message.SerializeToString())

    def frame(self, worker: int, incarnation: int, rank: int = 0) -> bytes:
        """A frame of the data plane of this rank of a worker, or nearly."""
        draw = self._random
        own = draw.random() < 0.8
        frame = Frame(
            kind=draw.choice([kind for kind in Kind if kind is not Kind.SHARE]),
            table=draw.choice((0, 0, 0, 1, (1 << 16) - 1)),
            partition=draw.choice((0, 0, 1, 7, (1 << 32) - 1)),
            step=draw.choice(UNSIGNED),
            version=draw.choice((0, 1, 1 << 31)),
            worker=worker if own else draw.choice((0, 1, 1 << 31, (1 << 32) - 1)),
            incarnation=incarnation if own else draw.choice((0, 1, (1 << 64) - 1)),
            rank=rank if own else draw.choice((0, 1, 1023, 1024, (1 << 16) - 1)),
            weight=draw.choice(NUMBERS[:7]),
            codec=draw.choice((0, 0, 1, 2, 255)),
            flags=draw.choice(FLAGS) if draw.random() < 0.5 else 0,
            hyper=draw.choice((0, 0, 1, 9)),
            meta=draw.randbytes(draw.choice((0, 0, 1, 4, 8, 40))),
            payload=draw.randbytes(draw.choice((0, 0, 1, 64, 4096, 4096))),
        )
        return self._spoilt(encode(frame), keeps=0.7)

    def _spoilt(self, data: bytes, keeps: float = 0.6) -> bytes:
        draw = self._random
        if draw.random() < keeps or not data:
            return data
        match draw.randrange(4):
            case 0:
                flipped = bytearray(data)
                for _ in range(draw.choice((1, 2, 8))):
                    flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
                return bytes(flipped)
            case 1:
                return data[: draw.randrange(len(data))]
            case 2:
                return data + data
        return data + draw.randbytes(draw.choice((1, 5, 64)))

    def _fill(self, message: Any, depth: int) -> None:
        descriptor: Descriptor = message.DESCRIPTOR
        chosen = {oneof.name: self._random.choice(oneof.fields).name for oneof in descriptor.oneofs}
        for field in descriptor.fields:
            oneof = field.containing_oneof
            if oneof is not None and chosen[oneof.name] != field.name:
                continue
            if oneof is None and self._random.random() < 0.25:
                continue
            self._set(message, field, depth)

    def _set(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        nested = field.type == _TYPES.TYPE_MESSAGE
        if nested and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for _ in range(self._random.choice((0, 1, 2))):
                getattr(message, field.name)[self._value(key)] = self._value(value)
        elif field.is_repeated and nested:
            for _ in range(self._random.choice((0, 1, 1, 2)) if depth < MAX_DEPTH else 0):
                self._fill(getattr(message, field.name).add(), depth + 1)
        elif field.is_repeated:
            count = self._random.choice((0, 1, 2, 2, 70))
            getattr(message, field.name).extend(self._value(field) for _ in range(count))
        elif nested:
            getattr(message, field.name).SetInParent()
            if depth < MAX_DEPTH:
                self._fill(getattr(message, field.name), depth + 1)
        else:
            setattr(message, field.name, self._value(field))

    def _value(self, field: FieldDescriptor) -> Any:
        if field.name == "protocol" and self._random.random() < 0.9:
            return PROTOCOL
        return self._DRAWS[field.type](self)

    def _text(self) -> str:
        if self._random.random() < 0.01:
            return self._random.choice("xé\n") * self._random.choice((5000, 200_000))
        return self._random.choice(self._texts)

    _DRAWS: Mapping[int, Callable[[Mutation], Any]] = {
        _TYPES.TYPE_UINT32: lambda it: it._random.choice([n for n in UNSIGNED if n < 1 << 32]),
        _TYPES.TYPE_UINT64: lambda it: it._random.choice(UNSIGNED),
        _TYPES.TYPE_INT32: lambda it: it._random.choice([n for n in SIGNED if abs(n) < 1 << 31]),
        _TYPES.TYPE_INT64: lambda it: it._random.choice([n for n in SIGNED if -(1 << 63) <= n < 1 << 63]),
        _TYPES.TYPE_SINT32: lambda it: it._random.choice([n for n in SIGNED if abs(n) < 1 << 31]),
        _TYPES.TYPE_SINT64: lambda it: it._random.choice([n for n in SIGNED if -(1 << 63) <= n < 1 << 63]),
        _TYPES.TYPE_DOUBLE: lambda it: it._random.choice(NUMBERS),
        _TYPES.TYPE_FLOAT: lambda it: it._random.choice(NUMBERS[:7]),
        _TYPES.TYPE_BOOL: lambda it: it._random.random() < 0.5,
        _TYPES.TYPE_STRING: _text,
        _TYPES.TYPE_BYTES: lambda it: it._random.randbytes(it._random.choice((0, 1, 16, 300))),
    }
