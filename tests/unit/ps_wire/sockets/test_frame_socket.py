"""Frames over a connected stream socket."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from ps_wire.errors import ConnectionLost, FrameMalformed, FrameTooLarge, ProtocolMismatch
from ps_wire.frames import frame as wire
from ps_wire.frames.buffer import as_tensor
from ps_wire.sockets.frame_socket import FrameSocket, close_all
from ps_wire.sockets.shared_memory import AVAILABLE
from tests.silence import fall_silent, linux
from tests.until import LIMIT_S

BIG = wire.MAX_PAYLOAD_BYTES


@pytest.fixture(params=["AF_UNIX", "AF_INET"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[FrameSocket, socket.socket]]:
    """One end that speaks frames, and the other one bare."""
    if request.param == "AF_UNIX":
        first, second = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            first = socket.create_connection(listener.getsockname())
            second = listener.accept()[0]
    made = FrameSocket(first)
    yield made, second
    made.close()
    second.close()


def frame(payload: bytes = b"", meta: bytes = b"", step: int = 0) -> wire.Frame:
    return wire.Frame(kind=wire.Kind.PUSH, step=step, meta=meta, payload=payload)


class Slow(socket.socket):
    """Takes a part of what is sent, as the system may."""

    def sendmsg(self, buffers: list[bytes | memoryview]) -> int:
        return super().sendmsg([memoryview(b"".join(buffers))[:1000]])


def test_what_the_system_takes_in_part_arrives_whole():
    """The rest follows, from where it was left, also inside a header."""
    first, second = socket.socketpair()
    slow = Slow(fileno=first.detach())
    ours, theirs = FrameSocket(slow), FrameSocket(second)
    sent = [frame(bytes([step]) * 3000, b"m" * (500 + step), step) for step in range(5)]
    sending = threading.Thread(target=ours.send, args=(sent,))
    sending.start()
    assert [wire.encode(theirs.receive(until_s=time.monotonic() + LIMIT_S)) for _ in sent] == [
        wire.encode(it) for it in sent
    ]
    sending.join()
    for end in (ours, theirs):
        end.close()


def test_a_frame_that_has_come_in_part_is_not_waited_for(ends):
    """`received` never waits: the header is here, and the meta behind it is not."""
    ours, bare = ends
    whole = wire.encode(frame(meta=b"m" * 32))
    bare.sendall(wire.encode(frame()) + whole[:-16])
    assert ours.receive() is not None
    got: list[wire.Frame | None] = []
    looking = threading.Thread(target=lambda: got.append(ours.received()), daemon=True)
    looking.start()
    looking.join(LIMIT_S)
    assert got == [None]
    bare.sendall(whole[-16:])
    assert ours.receive().meta == b"m" * 32


def test_what_has_come_since_is_looked_for_and_not_waited_for(ends):
    ours, bare = ends
    bare.sendall(wire.encode(frame(step=1)))
    assert ours.receive().step == 1
    assert ours.received(reads=True) is None
    bare.sendall(wire.encode(frame(step=2)) + wire.encode(frame(step=3)))
    assert ours.received() is None
    assert [ours.received(reads=True).step for _ in range(2)] == [2, 3]
    bare.close()
    assert ours.received(reads=True) is None
    assert ours.receive() is None


@pytest.mark.skipif(not AVAILABLE, reason="no descriptors travel here")
def test_descriptors_beside_a_frame_that_never_came_whole_are_closed_with_the_socket():
    """Nobody has been given them yet."""
    first, second = socket.socketpair()
    ours = FrameSocket(first)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    socket.send_fds(second, [wire.encode(frame())[:10]], [writing])
    os.close(writing)
    second.close()
    with pytest.raises(ConnectionLost):
        ours.receive()
    ours.close()
    assert os.read(reading, 1) == b"", "no end that writes is open"
    os.close(reading)


def test_frames_arrive_as_they_were_sent(ends):
    """Large and small ones, in batches, with a buffer far smaller than a frame."""
    ours, bare = ends
    theirs = FrameSocket(bare)
    sent = [
        frame(bytes([step]) * size, b"m" * step, step) for step, size in enumerate([0, 1, BIG, 5, 0, BIG, 64])
    ]
    sending = threading.Thread(target=lambda: (ours.send(sent[:4]), ours.send(sent[4:])))
    sending.start()
    for expected in sent:
        got = theirs.receive()
        assert wire.encode(got) == wire.encode(expected)
    sending.join()
    ours.end_sending()
    assert theirs.receive() is None


def test_more_frames_than_the_system_takes_buffers_are_sent(ends):
    ours, bare = ends
    ours.send([frame(b"x", step=step) for step in range(200)])
    theirs = FrameSocket(bare)
    assert [theirs.receive().step for _ in range(200)] == list(range(200))


def test_a_payload_lands_where_it_is_told_to(ends):
    ours, bare = ends
    place = bytearray(1000)
    asked = []

    def landing(head: wire.Frame, payload_bytes: int) -> memoryview | None:
        asked.append((head.step, head.payload, payload_bytes))
        return memoryview(place) if head.step else None

    bare.sendall(
        wire.encode(frame(b"a" * 1000)) + wire.encode(frame(b"b" * 1000, step=1)) + wire.encode(frame())
    )
    elsewhere, landed, nothing = (ours.receive(landing) for _ in range(3))
    assert bytes(elsewhere.payload) == b"a" * 1000
    assert landed.payload.obj is place
    assert place == b"b" * 1000
    assert not nothing.payload
    assert asked == [(0, b"", 1000), (1, b"", 1000)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_received_payload_is_aligned_for_every_dtype(ends, dtype):
    ours, bare = ends
    values = torch.arange(6, dtype=dtype)
    bare.sendall(wire.encode(frame(values.view(torch.uint8).numpy().tobytes(), b"odd")))
    payload = ours.receive().payload
    assert torch.equal(as_tensor(payload, dtype), values)
    assert as_tensor(payload, dtype).data_ptr() % 16 == 0


@pytest.mark.parametrize("cut", [1, 63, 64, 70, 79, 80, 99])
def test_a_stream_that_ends_inside_a_frame_is_lost(ends, cut):
    ours, bare = ends
    message = wire.encode(frame(b"payload of 20 bytes.", b"meta"))
    assert len(message) == 100
    bare.sendall(message[:cut])
    bare.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost, match="inside a frame"):
        ours.receive()


@pytest.mark.parametrize(
    ("place", "value", "error"),
    [
        (0, b"x", FrameMalformed),
        (4, b"\1", ProtocolMismatch),
        (5, b"\77", FrameMalformed),
        (56, b"\1\0\x80\0", FrameTooLarge),
        (60, b"\xff\xff\xff\xff", FrameTooLarge),
    ],
)
def test_what_a_header_may_not_say_is_refused_before_anything_else_comes(ends, place, value, error):
    """Nothing of what it announces is waited or allocated for."""
    ours, bare = ends
    header = bytearray(wire.encode(frame()))
    header[place : place + len(value)] = value
    bare.sendall(header)
    with pytest.raises(error):
        ours.receive(until_s=time.monotonic() + LIMIT_S)


def test_less_may_be_taken_than_a_frame_can_have(ends):
    ours, bare = ends
    bare.sendall(wire.encode(frame(meta=b"m" * 100)) + wire.encode(frame(meta=b"m" * 113))[:64])
    assert len(ours.receive(max_body_bytes=112).meta) == 100
    with pytest.raises(FrameTooLarge, match="113 bytes of meta and 0 of payload; 112 are taken here"):
        ours.receive(max_body_bytes=112)


def test_a_frame_that_does_not_come_in_time_is_given_up(ends):
    """However its bytes come; and what has no limit waits again."""
    ours, bare = ends
    bare.sendall(wire.encode(frame(step=7))[:-1])
    with pytest.raises(TimeoutError):
        ours.receive(until_s=time.monotonic() + 0.05)


def test_after_a_frame_in_time_the_next_one_may_take_longer(ends):
    ours, bare = ends
    bare.sendall(wire.encode(frame(step=1)))
    assert ours.receive(until_s=time.monotonic() + LIMIT_S).step == 1
    assert ours._socket.gettimeout() is None


def test_cutting_wakes_who_receives_and_who_sends(ends):
    ours, _ = ends
    ended: list[str] = []

    def sends() -> None:
        try:
            while True:
                ours.send([frame(bytes(BIG))])
        except ConnectionLost:
            ended.append("sender")

    def receives() -> None:
        assert ours.receive() is None
        ended.append("receiver")

    threads = [threading.Thread(target=target, daemon=True) for target in (sends, receives)]
    for thread in threads:
        thread.start()
    ours.sever()
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(ended) == ["receiver", "sender"]


def test_a_peer_that_has_gone_is_a_lost_connection(ends):
    ours, bare = ends
    bare.close()
    with pytest.raises(ConnectionLost, match="sending"):
        ours.send([frame(bytes(1 << 20))] * 100)


@linux
@pytest.mark.parametrize("limit_s", [None, 10 * LIMIT_S])
@pytest.mark.parametrize("sends", [False, True])
def test_a_peer_that_only_fell_silent_is_a_lost_connection(sends: bool, limit_s: float | None):
    """Python raises TimeoutError for ETIMEDOUT, too, which is not the limit of who receives."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connected = socket.create_connection(listener.getsockname())
        ours, bare = FrameSocket(connected), listener.accept()[0]
    fall_silent(connected)
    if sends:
        ours.send([frame()])
    with pytest.raises(ConnectionLost, match="receiving: Connection timed out"):
        ours.receive(until_s=limit_s and time.monotonic() + limit_s)
    ours.close()
    bare.close()


def test_a_limit_of_ours_that_is_over_leaves_the_connection(ends):
    ours, bare = ends
    with pytest.raises(TimeoutError):
        ours.receive(until_s=time.monotonic() + 0.01)
    bare.sendall(wire.encode(frame(step=3)))
    assert ours.receive(until_s=time.monotonic() + LIMIT_S).step == 3


def test_small_frames_that_came_together_are_taken_without_waiting(ends):
    receiver, sender = ends
    sender.sendall(b"".join(wire.encode(frame(meta=bytes(step), step=step)) for step in range(5)))
    got = [receiver.receive()]
    while (another := receiver.received()) is not None:
        got.append(another)
    assert [(one.step, len(one.meta)) for one in got] == [(step, step) for step in range(5)]
    sender.sendall(wire.encode(frame(step=9))[:63])
    assert receiver.received() is None


def test_a_frame_with_a_payload_is_received_where_it_is_told_to_even_behind_others(ends):
    receiver, sender = ends
    payload = bytes(range(256)) * 400  # more than what is read ahead
    place = memoryview(bytearray(len(payload)))
    sending = threading.Thread(
        target=sender.sendall, args=(wire.encode(frame(step=1)) + wire.encode(frame(payload, step=2)),)
    )
    sending.start()
    assert receiver.receive().step == 1
    assert receiver.received() is None  # its payload would have to be waited for
    got = receiver.receive(lambda _frame, _nbytes: place)
    sending.join()
    assert got.step == 2
    assert got.payload is place
    assert place == payload


@pytest.mark.skipif(not AVAILABLE, reason="no memory to be shared here")
def test_descriptors_go_to_the_share_that_they_came_with():
    """Frames before and behind it may have come in the same call of the system."""
    one, other = socket.socketpair(socket.AF_UNIX)
    sender, receiver = FrameSocket(one), FrameSocket(other)
    read, write = os.pipe()
    try:
        share = wire.Frame(kind=wire.Kind.SHARE, descriptors=(read,))
        sender.send([frame(step=1), share, frame(step=2), share, frame(step=3)])
        got = [receiver.receive() for _ in range(5)]
        assert [one.step for one in got] == [1, 0, 2, 0, 3]
        assert [len(one.descriptors) for one in got] == [0, 1, 0, 1, 0]
        close_all([descriptor for one in got for descriptor in one.descriptors])
    finally:
        sender.close()
        receiver.close()
        os.close(read)
        os.close(write)
