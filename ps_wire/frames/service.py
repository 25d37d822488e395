"""The service as a worker reaches it: calls to the coordinator, calls to a shard, a data stream to a shard.

Whatever is behind it, gRPC channels and sockets (`grpc_service` of a worker) or a server inside this process
(the entry point `ps.local_server`), a worker sees this and nothing else. Another carrier of frames is another
way to make a `DataStream`. What a call means is in `protos/`; an error of either kind of call is a `PsError`,
`ServerUnreachable` where nobody answers. `timeout` is in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from ps_wire.frames.frame import Frame
from ps_wire.v1 import shard_pb2
from ps_wire.v1.coordinator_pb2_calls import CoordinatorCalls
from ps_wire.v1.shard_pb2_calls import ShardCalls

LOCAL_SERVER = "ps.local_server"  # the group of entry points that holds a `Service` inside this process

# Where a payload is to lie, from its frame without meta and payload and its length; None: anywhere.
Landing: TypeAlias = Callable[[Frame, int], memoryview | None]


class DataStream(Protocol):
    """The worker's end of one data connection: iterates over the frames that come back.

    It ends when the shard ends the stream, and raises a `PsError` when it breaks; on one thread. Frames to
    send come from the iterator that it was made with, which is asked for the next one when there is room for
    it: only then is a payload copied, or sent from where it lies. That iterator must end soon after the
    stream has ended.
    """

    def __iter__(self) -> Iterator[Frame]:
        """Itself."""
        ...

    def __next__(self) -> Frame:
        """Waits for the next frame."""
        ...

    def cancel(self) -> None:
        """Ends the stream at once, whatever is still queued. Thread-safe."""
        ...

    def close(self) -> None:
        """Cancels it and frees what it holds: the last call, by the thread that iterates."""
        ...


class FramesOut(Protocol):
    """Frames that a connection sends, in order: taken one by one, or as many as are there."""

    def __iter__(self) -> Iterator[Frame]:
        """Waits for each; ends with the connection."""
        ...

    def __next__(self) -> Frame:
        """Waits for the next one. Raises StopIteration at the end."""
        ...

    def batch(self, bytes_of: Callable[[Frame], int] | None = None) -> list[Frame]:
        """Waits for frames and takes those that may leave together; none at the end.

        Args:
            bytes_of: of a frame, that travel as payload; default: all of it does.
        """
        ...


class Service(Protocol):
    """The coordinator and all shards, as a worker reaches them. Thread-safe."""

    @property
    def addresses(self) -> Sequence[str]:
        """Of the shards, in order, as messages for people name them."""
        ...

    @property
    def carriers(self) -> Sequence[str]:
        """Names of the carriers that `stream` can open."""
        ...

    @property
    def coordinator(self) -> CoordinatorCalls:
        """Calls to `Coordinator`."""
        ...

    def shard(self, index: int) -> ShardCalls:
        """Calls to `Shard` on the shard of that number."""
        ...

    def stream(
        self,
        shard: int,
        frames: FramesOut,
        offer: shard_pb2.Carrier,
        *,
        landing: Landing,
        limit_s: float,
    ) -> DataStream:
        """Opens a data connection.

        Args:
            shard: to which.
            frames: that it sends; the first one must be HELLO.
            offer: one of the carriers that the shard offers, and one of `carriers`.
            landing: asked for every payload that comes.
            limit_s: within which it must be open.

        Raises:
            PsError: this carrier does not reach the shard. Whether HELLO has arrived there is not known.
        """
        ...

    def move(self, shard: int, address: str) -> None:
        """A shard is at another address from now on."""
        ...

    def close(self) -> None:
        """Ends everything that is still open; nothing of it can be used any more."""
        ...
