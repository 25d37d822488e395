"""The service on other processes: calls over gRPC, a channel for the coordinator's and one for each shard.

Frames go over the same channel, or over a socket. The only file of the worker that knows grpc: what it raises
becomes a `PsError` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import grpc

from ps_wire import frame as wire
from ps_wire.carrier import Carrier
from ps_wire.channel import CLIENT
from ps_wire.service import DataStream, FramesOut, Landing
from ps_wire.status import error_of
from ps_wire.v1 import coordinator_pb2_grpc, shard_pb2, shard_pb2_grpc
from ps_worker import forked, socket_stream

DATA = "/ps_wire.v1.Shard/Data"


class GrpcService:
    """A `ps_wire.service.Service`."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """Connects to nobody yet: the first call does."""
        self.addresses = tuple(addresses)
        self.carriers = (*socket_stream.DOORS, Carrier.GRPC)
        for address in self.addresses:
            forked.remember(address)
        self._control = grpc.insecure_channel(self.addresses[0], options=CLIENT)
        self._channels = [grpc.insecure_channel(address, options=CLIENT) for address in self.addresses]
        self.coordinator = _Calls(coordinator_pb2_grpc.CoordinatorStub(self._control), self.addresses[0])
        self._shards = [
            _Calls(shard_pb2_grpc.ShardStub(channel), address)
            for channel, address in zip(self._channels, self.addresses, strict=True)
        ]

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
            return socket_stream.reach(offer, address, frames, landing=landing, limit_s=limit_s)
        forked.remember(self.addresses[shard])  # a shard that comes back may have another address
        return GrpcStream(self._channels[shard].stream_stream(DATA), frames, self.addresses[shard])

    def close(self) -> None:
        """See `Service.close`."""
        for channel in [self._control, *self._channels]:
            channel.close()


class _Replies:
    """Iterates over a call's replies; what breaks it is a `PsError`."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            raise error_of(error, self._address) from None

    def cancel(self) -> None:
        """Ends the call at once."""
        self._call.cancel()


class GrpcStream(_Replies):
    """A `DataStream`: messages of a gRPC stream that are the frames."""

    def __init__(self, method: Callable[..., Any], frames: Iterator[wire.Frame], address: str) -> None:
        unshared = (wire.encode(frame) for frame in frames if frame.kind is not wire.Kind.SHARE)
        super().__init__(method(unshared), address)

    def __next__(self) -> wire.Frame:
        return wire.decode(super().__next__())

    def close(self) -> None:
        """See `DataStream.close`."""
        self.cancel()


class _Calls:
    """A generated stub whose calls raise `PsError`: `ps_wire.service.Calls`."""

    def __init__(self, stub: Any, address: str) -> None:
        self._stub = stub
        self._address = address

    def __getattr__(self, name: str, /) -> Callable[..., Any]:
        method = getattr(self._stub, name)

        def call(given: Any, **options: Any) -> Any:
            try:
                answer = method(given, **options)
            except grpc.RpcError as error:
                raise error_of(error, self._address) from None
            return _Replies(answer, self._address) if isinstance(answer, grpc.Call) else answer

        return call
