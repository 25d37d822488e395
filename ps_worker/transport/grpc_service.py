"""The service on other processes: calls over gRPC, a channel for the coordinator's and one for each shard.

Frames go over the same channel, or over a socket. The only file of the worker that knows grpc: what it raises
becomes a `PsError` here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import grpc

from ps_wire.access.access import OPEN, Access
from ps_wire.access.certificates import Identity
from ps_wire.access.channel import dial
from ps_wire.access.status import error_of
from ps_wire.access.tls_diagnosis import LIMIT_S, diagnose
from ps_wire.errors import ConnectionLost, PsError, ServerUnreachable
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Carrier
from ps_wire.frames.service import DataStream, FramesOut, Landing
from ps_wire.frames.terms import whole
from ps_wire.v1 import coordinator_pb2_grpc, shard_pb2, shard_pb2_grpc
from ps_worker.process import after_fork
from ps_worker.transport import socket_stream

DATA = "/ps_wire.v1.Shard/Data"

Stub = TypeVar("Stub")


class GrpcService:
    """A `ps_wire.frames.service.Service`."""

    def __init__(self, addresses: Sequence[str], access: Access = OPEN) -> None:
        """Connects to nobody yet: the first call does."""
        self.addresses = tuple(addresses)
        self.carriers = (*socket_stream.DOORS, Carrier.GRPC)
        for address in self.addresses:
            after_fork.remember(address)
        self._access = access
        self._control = _Line(self.addresses[0], access)
        self._lines = [_Line(address, access) for address in self.addresses]
        self._moved: list[_Line] = []  # of addresses where a shard was before
        self.coordinator = _Calls(coordinator_pb2_grpc.CoordinatorStub, self._control)
        self._shards = [_Calls(shard_pb2_grpc.ShardStub, line) for line in self._lines]

    def shard(self, index: int) -> _Calls:
        """See `Service.shard`."""
        return self._shards[index]

    def stream(
        self,
        shard: int,
        frames: FramesOut,
        offer: shard_pb2.Carrier,
        *,
        landing: Landing,
        limit_s: float,
    ) -> DataStream:
        """See `Service.stream`."""
        if offer.name != Carrier.GRPC:
            address = self.addresses[shard]
            return socket_stream.reach(
                offer, address, frames, landing=landing, limit_s=limit_s, tls=self._access.tls
            )
        line = self._lines[shard]
        after_fork.remember(line.address)  # a shard that comes back may have another address
        unshared = (wire.encode(whole(frame)) for frame in frames if frame.kind is not wire.Kind.SHARE)
        stream = line.make(lambda channel: channel.stream_stream(DATA))
        return GrpcStream(stream(unshared, metadata=line.metadata), line)

    def move(self, shard: int, address: str) -> None:
        """See `Service.move`; calls that are under way end by themselves."""
        after_fork.remember(address)
        self._moved.append(self._lines[shard])
        self._lines[shard] = _Line(address, self._access)
        self._shards[shard] = _Calls(shard_pb2_grpc.ShardStub, self._lines[shard])
        self.addresses = (*self.addresses[:shard], address, *self.addresses[shard + 1 :])

    def close(self) -> None:
        """See `Service.close`."""
        for line in [self._control, *self._lines, *self._moved]:
            line.close()


class _Line:
    """The way to one server: a channel, and a new one when our certificates have changed. Thread-safe.

    Calls go on where they were begun, so the channels before stay open; `_lock` guards all of them.

    Attributes:
        closed: no call can be made any more.
    """

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        self.closed = False
        self._access = access
        self._lock = threading.Lock()
        self._identity = self._newest()
        self._channels = [dial(address, access)]

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Of the next call."""
        return self._access.metadata

    def make(self, stub: Callable[[grpc.Channel], Stub]) -> Stub:
        """Makes what makes the next call; not on a closed channel, which would end the process (SIGSEGV).

        Raises:
            ConnectionLost: it was closed.
        """
        with self._lock:
            if self.closed:
                raise self.closed_here()
            newest = self._newest()
            if newest is not self._identity:
                self._identity = newest
                self._channels.append(dial(self.address, self._access))
            return stub(self._channels[-1])

    def closed_here(self) -> ConnectionLost:
        """The error of calls that come too late."""
        return ConnectionLost(f"this process has closed its calls to {self.address}")

    def error(self, error: grpc.RpcError, limit_s: float | None = None) -> PsError:
        """The error that a failed call means; where the server cannot be reached, whether TLS is why.

        `limit_s`: of the call; to find out takes no longer.
        """
        named = error_of(error, self.address)
        if isinstance(named, ServerUnreachable):
            longest_s = LIMIT_S if limit_s is None else min(LIMIT_S, limit_s)
            return diagnose(self.address, self._access.tls, longest_s) or named
        return named

    def close(self) -> None:
        """Ends all calls."""
        with self._lock:
            self.closed = True  # before a call can fail for it
            for channel in self._channels:
                channel.close()

    def _newest(self) -> Identity | None:
        return self._access.tls.identity() if self._access.tls is not None else None


class _Replies:
    """Iterates over a call's replies; what breaks it is a `PsError`."""

    def __init__(self, call: Any, line: _Line) -> None:
        self._call = call
        self._line = line

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            raise self._line.error(error) from None

    def cancel(self) -> None:
        """Ends the call at once."""
        self._call.cancel()


class GrpcStream(_Replies):
    """A `DataStream`: messages of a gRPC stream that are the frames."""

    def __next__(self) -> wire.Frame:
        return wire.decode(super().__next__())

    def close(self) -> None:
        """See `DataStream.close`."""
        self.cancel()


class _Calls:
    """A generated stub whose calls raise `PsError`: a `CoordinatorCalls` or `ShardCalls`."""

    def __init__(self, stub: Callable[[grpc.Channel], Any], line: _Line) -> None:
        self._stub = stub
        self._line = line

    def __getattr__(self, name: str, /) -> Callable[..., Any]:
        def call(given: Any, **options: Any) -> Any:
            method = getattr(self._line.make(self._stub), name)
            try:
                answer = method(given, metadata=self._line.metadata, **options)
            except grpc.RpcError as error:
                raise self._line.error(error, options.get("timeout")) from None
            except ValueError:
                if not self._line.closed:
                    raise
                raise self._line.closed_here() from None
            return _Replies(answer, self._line) if isinstance(answer, grpc.Call) else answer

        return call
