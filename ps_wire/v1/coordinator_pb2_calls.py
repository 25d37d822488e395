"""Calls of the services in `ps_wire/v1/coordinator.proto`, as who calls makes them. Generated: `make protos`.

A call takes a message, or an iterator of messages where the client streams, and returns a message, or replies
where the server streams. What it raises is its maker's to say.
"""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from ps_wire.v1 import coordinator_pb2

Reply_co = TypeVar("Reply_co", covariant=True)


class Replies(Protocol[Reply_co]):
    """What a server streams; a call that has not ended can be cancelled."""

    def __iter__(self) -> Iterator[Reply_co]: ...

    def __next__(self) -> Reply_co: ...

    def cancel(self) -> object: ...


class CoordinatorCalls(Protocol):
    """The methods of `Coordinator`."""

    def Member(
        self, request: Iterator[coordinator_pb2.MemberRequest], /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> Replies[coordinator_pb2.MemberReply]: ...

    def Read(
        self, request: Iterator[coordinator_pb2.ReadRequest], /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> Replies[coordinator_pb2.ReadReply]: ...

    def Follow(
        self, request: Iterator[coordinator_pb2.FollowRequest], /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> Replies[coordinator_pb2.Order]: ...

    def PutState(
        self, request: Iterator[coordinator_pb2.StateChunk], /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> coordinator_pb2.PutStateReply: ...

    def GetState(
        self, request: coordinator_pb2.GetStateRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> Replies[coordinator_pb2.StateChunk]: ...

    def Share(
        self, request: coordinator_pb2.ShareRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> coordinator_pb2.ShareReply: ...

    def Use(
        self, request: coordinator_pb2.UseRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> coordinator_pb2.UseReply: ...

    def BeginEpoch(
        self, request: coordinator_pb2.EpochRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> coordinator_pb2.EpochReply: ...

    def StopJob(
        self, request: coordinator_pb2.StopRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> coordinator_pb2.EpochReply: ...

    def Collect(
        self, request: coordinator_pb2.CollectRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> coordinator_pb2.CollectReply: ...

    def Meet(
        self, request: coordinator_pb2.MeetRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> coordinator_pb2.MeetReply: ...

    def Status(
        self, request: coordinator_pb2.StatusRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> coordinator_pb2.StatusReply: ...

    def Snapshot(
        self, request: coordinator_pb2.SnapshotRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> Replies[coordinator_pb2.SnapshotProgress]: ...

    def NameSnapshot(
        self, request: coordinator_pb2.SnapshotRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> coordinator_pb2.SnapshotProgress: ...

    def Restore(
        self, request: coordinator_pb2.RestoreRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> coordinator_pb2.SnapshotProgress: ...

    def Drop(
        self, request: coordinator_pb2.DropRequest, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> coordinator_pb2.DropReply: ...
