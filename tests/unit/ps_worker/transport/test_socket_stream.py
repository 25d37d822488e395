"""What of a frame leaves over a socket: terms and payloads stay where a shard maps them, else they travel."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from ps_wire.frames import frame as wire
from ps_wire.frames.lists import partitions
from ps_wire.sockets.frame_socket import FrameSocket, close_all
from ps_worker.transport.outbox import FrameOutbox
from ps_worker.transport.socket_stream import SocketStream
from tests.until import LIMIT_S

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="descriptors need Unix sockets")
TERMS = [torch.randn(8, generator=torch.Generator().manual_seed(it)) for it in range(2)]
MEAN = (TERMS[0] + TERMS[1]) / 2
PUSH = wire.Frame(kind=wire.Kind.PUSH, table=3, terms=tuple(memoryview(it.numpy()).cast("B") for it in TERMS))


@contextmanager
def connected(*, shares: bool) -> Iterator[tuple[FrameOutbox, FrameSocket]]:
    """What the worker queues, and the shard's end."""
    mine, theirs = socket.socketpair()
    shard = FrameSocket(theirs)
    shard.send([wire.Frame(kind=wire.Kind.HELLO)])
    outbox = FrameOutbox(wire.Frame(kind=wire.Kind.HELLO))
    stream = SocketStream(mine, outbox, lambda *_: None, shares=shares)
    stream.greet(time.monotonic() + LIMIT_S)
    try:
        assert shard.receive() is not None
        yield outbox, shard
    finally:
        outbox.close()
        stream.close()
        shard.close()


def received(shard: FrameSocket) -> wire.Frame:
    frame = shard.receive()
    assert frame is not None
    close_all(frame.descriptors)
    return frame


def test_terms_that_the_shard_maps_stay_where_they_are() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    share = wire.Frame(kind=wire.Kind.SHARE, table=3, version=1, hyper=1, descriptors=(descriptor,))
    plain = wire.Frame(kind=wire.Kind.PUSH, table=3, partition=1, payload=b"mine")
    with connected(shares=True) as (outbox, shard):
        outbox.put([share, PUSH])
        assert received(shard).hyper == 1
        for flags in (wire.SHARED | wire.RANKS, wire.SHARED):
            frame = received(shard)
            assert (frame.kind, frame.flags, len(frame.payload)) == (wire.Kind.PUSH, flags, 0)
            outbox.put([plain])
    os.close(descriptor)


@pytest.mark.parametrize("shares", [True, False])
def test_of_terms_that_the_shard_does_not_map_the_mean_travels(shares: bool) -> None:
    """The connection before it shared memory, and this one is to a server on another host, for instance."""
    with connected(shares=shares) as (outbox, shard):
        outbox.put([PUSH])
        frame = received(shard)
        assert frame.flags == 0
        assert torch.equal(torch.frombuffer(bytearray(frame.payload), dtype=torch.float32), MEAN)


@pytest.mark.parametrize("shares", [True, False])
def test_pushes_that_leave_together_leave_as_a_list_where_nothing_travels(shares: bool) -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    share = wire.Frame(kind=wire.Kind.SHARE, table=3, version=1, descriptors=(descriptor,))
    pushes = [wire.Frame(kind=wire.Kind.PUSH, table=3, partition=it, payload=b"mine") for it in range(3)]
    with connected(shares=shares) as (outbox, shard):
        outbox.put([share, *pushes])
        if shares:
            assert received(shard).kind is wire.Kind.SHARE
            assert partitions(received(shard)) == (2, 1, 0)
        else:
            came = [received(shard) for _ in pushes]
            assert [(it.flags, it.partition, bytes(it.payload)) for it in came] == [
                (0, partition, b"mine") for partition in (2, 1, 0)
            ]
    os.close(descriptor)
