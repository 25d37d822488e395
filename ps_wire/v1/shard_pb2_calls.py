"""Calls of the services in `ps_wire/v1/shard.proto`, as who calls makes them. Generated: `make protos`.

A call takes a message, or an iterator of messages where the client streams, and returns a message, or replies
where the server streams. What it raises is its maker's to say.
"""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from ps_wire.v1 import shard_pb2

Reply_co = TypeVar("Reply_co", covariant=True)


class Replies(Protocol[Reply_co]):
    """What a server streams; a call that has not ended can be cancelled."""

    def __iter__(self) -> Iterator[Reply_co]: ...

    def __next__(self) -> Reply_co: ...

    def cancel(self) -> object: ...


class ShardCalls(Protocol):
    """The methods of `Shard`."""

    def Describe(
        self, request: shard_pb2.DescribeRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> shard_pb2.DescribeReply: ...

    def Open(
        self, request: shard_pb2.OpenRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> shard_pb2.OpenReply: ...

    def Tables(
        self, request: shard_pb2.TablesRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> shard_pb2.TablesReply: ...

    def Dump(
        self, request: shard_pb2.DumpRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> Replies[shard_pb2.PartitionState]: ...

    def LoadState(
        self, request: Iterator[shard_pb2.PartitionState], /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> shard_pb2.LoadStateReply: ...

    def PutSnapshot(
        self, request: Iterator[shard_pb2.SnapshotChunk], /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> shard_pb2.SnapshotFiles: ...

    def LookSnapshot(
        self, request: shard_pb2.SnapshotFile, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> shard_pb2.SnapshotFiles: ...
