"""Payloads that leave a Unix socket by reference."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import socket
import threading
import weakref
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import pytest

from ps_wire.errors import ConnectionLost
from ps_wire.frames import frame as wire
from ps_wire.sockets import lent_memory, shared_memory
from ps_wire.sockets.frame_socket import LARGE_BYTES, REFERRED_BYTES, FrameSocket
from tests.until import LIMIT_S

pytestmark = pytest.mark.skipif(not shared_memory.AVAILABLE, reason="no memory to be lent here")
SIZE = 4 * REFERRED_BYTES


def made(seed: int = 0) -> mmap.mmap:
    descriptor, memory = shared_memory.create_readable(SIZE)
    lent_memory.lend(memory, descriptor)
    memory[:] = np.random.default_rng(seed).bytes(SIZE)
    return memory


Ends: TypeAlias = tuple[FrameSocket, FrameSocket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    first, second = map(FrameSocket, socket.socketpair())
    yield first, second
    first.close()
    second.close()


def test_only_what_lies_in_lent_memory_as_a_whole_is_lent() -> None:
    """With its place from the start of that memory; not what reaches beyond its end, nor what has gone."""
    memory = made()
    descriptor, start = lent_memory.place_of(memoryview(memory)[100:200]) or (-1, -1)
    assert os.fstat(descriptor).st_size == SIZE
    assert start == 100
    address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    beyond = (ctypes.c_char * 100).from_address(address + SIZE - 50)  # never read
    assert lent_memory.place_of(memoryview(beyond)) is None
    assert lent_memory.place_of(memoryview(bytearray(100))) is None


def frame(payload: memoryview | bytes = b"", step: int = 0) -> wire.Frame:
    return wire.Frame(kind=wire.Kind.PUSH, step=step, payload=payload)


def sending(end: FrameSocket, *frames: wire.Frame) -> threading.Thread:
    thread = threading.Thread(target=end.send, args=(frames,), daemon=True)
    thread.start()
    return thread


def test_lent_and_other_payloads_arrive_in_order_as_they_are(ends: Ends) -> None:
    ours, theirs = ends
    memory = memoryview(made())
    cut = LARGE_BYTES + 12_345
    payloads = [memory[7:cut], b"small", memory[cut:], b"x" * SIZE, memory[:100], b"", memory[: SIZE // 2]]
    thread = sending(ours, *[frame(payload, step) for step, payload in enumerate(payloads)])
    for step, payload in enumerate(payloads):
        got = theirs.receive()
        assert got is not None
        assert (got.step, bytes(got.payload)) == (step, bytes(payload))
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_what_has_left_by_reference_is_still_the_senders_memory(ends: Ends) -> None:
    """Why its owner waits until it has arrived: the receiver copies what is there by then."""
    ours, theirs = ends
    memory = made()
    count = LARGE_BYTES  # fits into the socket, so that it has left
    ours.send([frame(memoryview(memory)[:count])])
    memory[:count] = b"n" * count
    got = theirs.receive()
    assert got is not None
    assert bytes(got.payload) == b"n" * count


def test_a_limit_of_who_receives_does_not_end_who_sends(ends: Ends) -> None:
    """A socket has one limit for both directions, and does not block while it has one."""
    ours, theirs = ends
    memory = memoryview(made())
    ours._socket.settimeout(1e-3)
    thread = sending(ours, frame(memory))
    got = theirs.receive()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert got is not None
    assert got.payload == memory


def test_a_peer_that_goes_while_pages_leave_is_a_lost_connection(ends: Ends) -> None:
    ours, theirs = ends
    memory = memoryview(made())
    errors: list[BaseException] = []

    def send() -> None:
        try:
            ours.send([frame(memory)])
        except ConnectionLost as error:
            errors.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    assert theirs._read_more(None)  # the sender is in the middle of it
    theirs.sever()
    thread.join(LIMIT_S)
    assert [str(error) for error in errors] == ["sending: Broken pipe"]


def test_memory_is_lent_as_long_as_it_is_there() -> None:
    gc.collect()
    before = len(lent_memory._lent)
    memory = made()
    view = memoryview(memory)
    place = lent_memory.place_of(view[100:200])
    assert place is not None
    descriptor, offset = place
    assert (os.pread(descriptor, 100, offset), offset) == (bytes(view[100:200]), 100)
    assert len(lent_memory._lent) == before + 1
    del memory, view
    gc.collect()
    assert len(lent_memory._lent) == before


def test_what_is_mapped_where_lent_memory_was_is_not_lent_before_that_is_forgotten() -> None:
    """Python unmaps memory first, then calls finalizers: other threads map something there in between."""
    memory = made()
    address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    other = (ctypes.c_char * SIZE).from_address(address)
    found: list[object] = []
    weakref.finalize(memory, lambda: found.append(lent_memory.place_of(memoryview(other)[:100])))
    assert lent_memory.place_of(memoryview(other)[:100]) is not None
    del memory
    gc.collect()
    assert found == [None]


def test_what_is_lent_where_other_memory_was_stays_lent_when_that_is_forgotten() -> None:
    """It came between the unmapping of the one before and its finalizer."""
    memory = made()
    address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    other = (ctypes.c_char * SIZE).from_address(address)
    weakref.finalize(memory, lent_memory.lend, other, -1)
    del memory
    gc.collect()
    assert lent_memory.place_of(memoryview(other)[100:200]) == (-1, 100)
    del other
    gc.collect()


def test_other_memory_is_not_lent() -> None:
    kept = made()
    other = np.zeros(SIZE, dtype=np.uint8)
    assert lent_memory.place_of(other.data) is None
    assert lent_memory.place_of(memoryview(kept)) is not None
