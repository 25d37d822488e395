"""A worker without the library: every message and every frame is the test's own."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeAlias

import grpc
import numpy as np

import ps_worker as ps
from ps_wire.access.channel import CLIENT
from ps_wire.errors import PsError
from ps_wire.frames import frame as wire
from ps_wire.frames.frame import PROTOCOL, Frame, Kind
from ps_wire.frames.messages import parse_message, refused_from_proto, table_to_proto
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, ParameterSpec, TableSpec
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import shard_pb2, spec_pb2
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_wire.v1.shard_pb2_grpc import ShardStub

from .processes import LIMIT_S
from .servers import Servers, fresh_job

Metadata: TypeAlias = tuple[tuple[str, str], ...]  # of calls
NUMEL = 4096  # float32: two partitions on each of two shards


class Stream:
    """A bidirectional stream: `send` queues, iterating receives."""

    def __init__(self, begin: Callable[..., Any], metadata: Metadata = ()) -> None:
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        messages = iter(self._outbox.get, None)
        self.call = begin(messages, timeout=LIMIT_S, wait_for_ready=True, metadata=metadata)

    def send(self, message: Any) -> None:
        self._outbox.put(message)

    def close(self) -> None:
        self._outbox.put(None)
        self.call.cancel()


class DataStream(Stream):
    """A data connection to one shard that has said nothing yet."""

    def __init__(self, address: str, metadata: Metadata = ()) -> None:
        self._channel = grpc.insecure_channel(address, options=CLIENT)
        super().__init__(self._channel.stream_stream("/ps_wire.v1.Shard/Data"), metadata)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._channel.close()

    def receive(self) -> Frame:
        """The shard's next frame; at the end of the stream StopIteration or grpc.RpcError."""
        return wire.decode(next(self.call))

    def refusal(self) -> PsError:
        """The error in the shard's next frame, which must be a REFUSE."""
        frame = self.receive()
        assert frame.kind is Kind.REFUSE, frame
        return refused_from_proto(parse_message(pb.Refused, bytes(frame.meta)))

    def is_closed(self) -> bool:
        """Whether the stream ends without another frame."""
        try:
            frame = self.receive()
        except StopIteration:
            return True
        except grpc.RpcError as error:
            return bool(error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED)
        raise AssertionError(frame)


def refused_join(address: str, first: pb.MemberRequest) -> PsError:
    """What a member's stream that starts with this message is refused with."""
    with grpc.insecure_channel(address, options=CLIENT) as channel:
        stream = Stream(CoordinatorStub(channel).Member)
        stream.send(first)
        reply: pb.MemberReply = next(stream.call)
        stream.close()
    assert reply.WhichOneof("kind") == "refused", reply
    return refused_from_proto(reply.refused)


class RawWorker:
    """The only worker of a job with one table, `w` of `NUMEL` zeros under SGD(lr=1).

    Attributes:
        job: its name.
        plan: of the table.
        streams: a data connection to each shard, in shard order.
    """

    def __init__(
        self, servers: Servers, consistency: str = "asp", *, job: str = "", metadata: Metadata = ()
    ) -> None:
        """Joins; a job without a name gets one, and `metadata` goes with each call."""
        self.job = job or fresh_job()
        self.servers = servers
        self._metadata = metadata
        self.spec = TableSpec(
            number=0,
            parameters=(ParameterSpec(name="w", shape=(NUMEL,)),),
            optimizer=ps.SGD(lr=1.0).spec(),
            buckets=BucketOptions(partition_bytes=4096),
        )
        self.plan = Plan(self.spec, len(servers.addresses))
        self._channels = [grpc.insecure_channel(address, options=CLIENT) for address in servers.addresses]
        self._member = Stream(CoordinatorStub(self._channels[0]).Member, metadata)
        job = spec_pb2.Job(name=self.job, consistency=consistency, num_workers=1)
        self._tell("joined", join=pb.Join(protocol=PROTOCOL, job=job, worker=0, host="raw", pid=1))
        self._tell("table_made", make_table=pb.MakeTable(table=table_to_proto(self.spec)))
        self.streams = [self.connect(shard) for shard in range(len(servers.addresses))]
        for partition in self.partitions():
            payload = bytes(4 * partition.numel)
            self.streams[partition.shard].send(
                self.frame(Kind.LOAD, partition=partition.index, payload=payload)
            )
            assert self.streams[partition.shard].receive().kind is Kind.ACK
        self._tell("table_started", uploaded=pb.Uploaded(table=0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self.streams:
            stream.__exit__()
        self._tell("left", leave=pb.Leave(reason=""))
        self._member.close()
        for channel in self._channels:
            channel.close()

    def partitions(self, shard: int | None = None) -> Iterator[Any]:
        """All partitions, or those of a shard."""
        for index in range(self.plan.num_partitions):
            partition = self.plan.partition(index)
            if shard in (None, partition.shard):
                yield partition

    def frame(self, kind: Kind, **fields: Any) -> bytes:
        """An encoded frame of this worker."""
        return wire.encode(Frame(kind=kind, **{"worker": 0, "incarnation": 1, **fields}))

    def open(self, shard: int, rank: int = 0) -> shard_pb2.OpenReply:
        """A token that is just given out, for a rank, and the carriers that are offered."""
        request = shard_pb2.OpenRequest(job=self.job, worker=0, incarnation=1, rank=rank)
        reply: shard_pb2.OpenReply = ShardStub(self._channels[shard]).Open(
            request, timeout=LIMIT_S, metadata=self._metadata
        )
        return reply

    def hello(self, shard: int, **fields: Any) -> bytes:
        """A HELLO with a token that was just given out."""
        token = self.open(shard, fields.get("rank", 0)).token
        return self.frame(Kind.HELLO, **{"meta": token + self.job.encode(), **fields})

    def connect(self, shard: int) -> DataStream:
        """A new data connection, greeted."""
        stream = DataStream(self.servers.addresses[shard], self._metadata)
        stream.send(self.hello(shard))
        assert stream.receive().kind is Kind.HELLO
        return stream

    def push(self, partition: Any, step: int, value: float = -1.0, **fields: Any) -> bytes:
        """A PUSH of one value everywhere."""
        payload = np.full(partition.numel, value, dtype=np.float32).tobytes()
        return self.frame(
            Kind.PUSH, **{"partition": partition.index, "step": step, "payload": payload, **fields}
        )

    def read(self, partition: Any, step: int) -> set[float]:
        """The values of a partition, at a clock."""
        meta = partition.index.to_bytes(4, "little")
        stream = self.streams[partition.shard]
        stream.send(self.frame(Kind.PULL, partition=partition.index, step=step, meta=meta))
        frame = stream.receive()
        assert frame.kind is Kind.PULLED, frame
        return set(np.frombuffer(frame.payload, dtype=np.float32).tolist())

    def _tell(self, answer: str, **message: Any) -> None:
        self._member.send(pb.MemberRequest(**message))
        self.hears(answer)

    def hears(self, answer: str) -> None:
        """Waits until the coordinator says this to the member."""
        for reply in self._member.call:
            kind = reply.WhichOneof("kind")
            assert kind != "refused", reply
            if kind == answer:
                return
