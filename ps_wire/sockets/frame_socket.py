"""Frames over a connected stream socket, TCP or Unix, for both ends.

Nothing is copied in between: a payload is sent from where it lies, and received where it is to lie. What lies
in lent memory is not even copied into a Unix socket. A length is checked before memory is allocated for it.
One thread may send while another one receives.

It must not know what a frame means, nor who may connect.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from ps_wire.errors import ConnectionLost, FrameTooLarge
from ps_wire.frames import frame as wire
from ps_wire.frames.queue import FrameQueue
from ps_wire.frames.service import Landing
from ps_wire.process import trace
from ps_wire.sockets import lent_memory
from ps_wire.sockets.shared_memory import AVAILABLE
from ps_wire.sockets.tls_socket import ran_out

# Of both sockets of a connection within one host. Measured: a buffer that fits into the cores' caches is up
# to twice as fast as what the system gives; between hosts the system's own tuning is better.
LOCAL_BUFFER_BYTES = 128 << 10
# Of what a Unix socket holds by reference; the system may give less. Nothing goes through caches on its way
# in, so fewer switches between sender and receiver are worth more.
REFERRED_BYTES = 1 << 20
BUFFER_BYTES = 8 << 10  # for headers: some hundred frames without payload in one call of the system
MAX_BODY_BYTES = wire.MAX_META_BYTES + wire.MAX_PAYLOAD_BYTES
BATCH_FRAMES = 64  # that leave together; a large one is the last: its payload is held until all have left
LARGE_BYTES = 64 << 10
MAX_BUFFERS = 64  # in one call of the system; it takes 1024
KEEPALIVE_S = (10, 5, 3)  # idle until a probe is sent, between probes, how many: gone after 25 s
MAX_DESCRIPTORS = 34  # beside a frame: two, and those of ranks; the system drops what is more
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * MAX_DESCRIPTORS) if hasattr(socket, "CMSG_SPACE") else 0
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_WHOLE = getattr(socket, "MSG_WAITALL", 0)  # one call for a payload instead of one per 64 KiB

Queued = TypeVar("Queued")


def _nowhere(_frame: wire.Frame, _payload_bytes: int) -> memoryview | None:
    return None


class FrameSocket:
    """A connected socket that sends and receives frames. It owns the socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._carries_descriptors = AVAILABLE and connected.family == socket.AF_UNIX
        self._refers = False  # payloads have left by reference
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = self._end = 0  # of what was received and is not taken yet
        self._descriptors: list[int] = []  # that came beside it
        connected.setblocking(True)
        tune(connected)

    @trace.traced("send")
    def send(self, frames: Sequence[wire.Frame]) -> None:
        """Sends frames one behind the other; returns when the system has taken them.

        Args:
            frames: their payloads must not change meanwhile; in lent memory, not before they have arrived.

        Raises:
            ConnectionLost: the connection is broken.
        """
        buffers: list[bytes | memoryview] = []
        small: list[bytes] = []  # sent in one piece
        for frame in frames:
            if frame.descriptors:
                self._send_all(buffers, small)
                buffers, small = [], []
                self._send_with(frame)
                continue
            small.append(wire.prefix(frame))
            if (place := self._lent(frame.payload)) is not None:
                self._send_all(buffers, small)
                buffers, small = [], []
                self._refer(*place, len(frame.payload))
            elif frame.payload:
                buffers += [b"".join(small), memoryview(frame.payload)]
                small = []
        self._send_all(buffers, small)

    def _lent(self, payload: bytes | memoryview) -> tuple[int, int] | None:
        if not self._carries_descriptors or len(payload) < LARGE_BYTES or isinstance(payload, bytes):
            return None
        return lent_memory.place_of(payload)

    def _refer(self, descriptor: int, start: int, count: int) -> None:
        """Sends bytes of a file; the socket holds its pages."""
        try:
            if not self._refers:
                self._refers = True
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REFERRED_BYTES)
            end = start + count
            while start < end:
                try:
                    start += os.sendfile(self._socket.fileno(), descriptor, start, end - start)
                except BlockingIOError:  # who receives has a limit in time, which the socket has then, too
                    self._wait_room()
        except OSError as error:
            raise ConnectionLost(f"sending: {error.strerror or error}") from None

    def _wait_room(self) -> None:
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        room.poll()

    def _send_with(self, frame: wire.Frame) -> None:
        """Sends a frame without payload whose descriptors go with its first byte."""
        prefix = wire.prefix(frame)
        try:
            sent = socket.send_fds(self._socket, [prefix], frame.descriptors)
        except OSError as error:
            raise ConnectionLost(f"sending: {error.strerror or error}") from None
        self._send_all([], [prefix[sent:]])

    def _send_all(self, buffers: list[bytes | memoryview], small: Sequence[bytes]) -> None:
        """Sends buffers, then small ones in one piece."""
        if last := b"".join(small):
            buffers = [*buffers, last]
        index = 0
        try:
            while index < len(buffers):
                sent = self._socket.sendmsg(buffers[index : index + MAX_BUFFERS])
                while index < len(buffers) and sent >= len(buffers[index]):
                    sent -= len(buffers[index])
                    index += 1
                if sent:
                    buffers[index] = memoryview(buffers[index])[sent:]
        except OSError as error:
            raise ConnectionLost(f"sending: {error.strerror or error}") from None

    def receive(
        self,
        landing: Landing = _nowhere,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        until_s: float | None = None,
    ) -> wire.Frame | None:
        """Waits for the next frame; None where the other end has ended the stream between two frames.

        Args:
            landing: says where a payload is to lie, from the frame without meta and payload and the payload's
                length; None means memory of its own.
            max_body_bytes: of meta and payload.
            until_s: of the monotonic clock; without it, it waits for ever.

        Raises:
            FrameMalformed, FrameTooLarge, ProtocolMismatch: what comes is no frame, or too large. Nothing was
                allocated for it, and nothing more can be received.
            ConnectionLost: the connection broke, or ended inside a frame.
            TimeoutError: it is past `until_s`. A peer that TCP gives up is a lost connection.
        """
        while self._end - self._start < wire.HEADER_BYTES:
            if not self._read_more(until_s):
                if self._end > self._start:
                    raise ConnectionLost("the stream ended inside a frame")
                return None
        return self._rest(wire.Header(self._buffer, self._start), landing, max_body_bytes, until_s)

    def _rest(
        self, head: wire.Header, landing: Landing, max_body_bytes: int, until_s: float | None
    ) -> wire.Frame:
        """The frame whose header is the next that is buffered."""
        self._start += wire.HEADER_BYTES
        if head.padded_meta_bytes + head.payload_bytes > max_body_bytes:
            raise FrameTooLarge(
                f"a {head.kind.name} frame announces {head.meta_bytes} bytes of meta and "
                f"{head.payload_bytes} of payload; {max_body_bytes} are taken here"
            )
        meta = memoryview(bytearray(head.padded_meta_bytes))
        payload = self._place(head, landing)
        for part in (meta, payload):
            if len(part):
                self._fill(part, until_s)
        descriptors: tuple[int, ...] = ()
        if head.kind is wire.Kind.SHARE:
            descriptors, self._descriptors = tuple(self._descriptors), []
        return head.frame(meta[: head.meta_bytes], payload, descriptors)

    def received(self, *, reads: bool = False) -> wire.Frame | None:
        """The next frame if all of it has come already, and it has no payload; never waits.

        Args:
            reads: looks also at what the system holds, and not only at what was read with an earlier frame.

        Raises:
            FrameMalformed, FrameTooLarge, ProtocolMismatch, ConnectionLost: as for `receive`.
        """
        if reads and self._end - self._start < wire.HEADER_BYTES and self._has_come():
            self._read_more(None)
        here = self._end - self._start
        if here < wire.HEADER_BYTES:
            return None
        head = wire.Header(self._buffer, self._start)
        if head.payload_bytes or here < wire.HEADER_BYTES + head.padded_meta_bytes:
            return None
        return self._rest(head, _nowhere, MAX_BODY_BYTES, None)

    @staticmethod
    def _place(head: wire.Header, landing: Landing) -> memoryview:
        if not head.payload_bytes:
            return memoryview(b"")
        place = landing(head.frame(), head.payload_bytes)
        if place is not None:
            assert len(place) == head.payload_bytes
            return place
        # Aligned, not filled with zeros, and in the steady state a block that was freed before: `allocator`.
        return np.empty(head.payload_bytes, dtype=np.uint8).data

    def _has_come(self) -> bool:
        come = select.poll()
        come.register(self._socket, select.POLLIN)
        return bool(come.poll(0))

    def _read_more(self, until_s: float | None) -> bool:
        """Reads what has come behind what is buffered, less than a header; False at the end of the stream."""
        kept = self._end - self._start
        self._buffer[:kept] = self._buffer[self._start : self._end]
        self._start, self._end = 0, kept
        if not kept or len(self._descriptors) > MAX_DESCRIPTORS:  # they came beside nothing that takes them
            self._drop_descriptors()
        read = self._read_with_descriptors if self._carries_descriptors else self._socket.recv_into
        count = _in_time(self._socket, read, memoryview(self._buffer)[kept:], until_s)
        self._end += count
        return count > 0

    def _fill(self, part: memoryview, until_s: float | None) -> None:
        """Fills a part of a frame, first from what is buffered."""
        filled = min(len(part), self._end - self._start)
        part[:filled] = memoryview(self._buffer)[self._start : self._start + filled]
        self._start += filled
        while filled < len(part):
            count = _in_time(self._socket, self._read_whole, part[filled:], until_s)
            if count == 0:
                raise ConnectionLost("the stream ended inside a frame")
            filled += count

    def _read_whole(self, view: memoryview) -> int:
        return self._socket.recv_into(view, 0, _WHOLE)

    def _read_with_descriptors(self, view: memoryview) -> int:
        """Reads, with descriptors that come along; the system ends what is read where some came."""
        count, ancillary, _, _ = self._socket.recvmsg_into([view], _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors += array.array("i", data[: len(data) - len(data) % 4])
        return count

    def _drop_descriptors(self) -> None:
        close_all(self._descriptors)
        self._descriptors = []

    def discard(self, until_s: float) -> None:
        """Takes what still comes, until the other end has ended the stream too, or until that time.

        Closing with bytes that nobody has read resets a connection: the other end might lose what it was
        sent last.
        """
        with contextlib.suppress(OSError):
            while (left_s := until_s - time.monotonic()) > 0:
                self._socket.settimeout(left_s)
                if not self._socket.recv_into(self._buffer):
                    return

    def end_sending(self) -> None:
        """Nothing more is sent; the other end sees the end of the stream behind what was."""
        self._shut(socket.SHUT_WR)

    def sever(self) -> None:
        """Ends both directions at once; whoever sends or receives returns. Any thread."""
        self._shut(socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the socket; no thread may be using it."""
        self._drop_descriptors()
        self._socket.close()

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):  # it may be broken already
            self._socket.shutdown(how)


def _in_time(
    connected: socket.socket, read: Callable[[memoryview], int], view: memoryview, until_s: float | None
) -> int:
    try:
        if until_s is not None:
            connected.settimeout(max(until_s - time.monotonic(), 1e-3))
        count = read(view)
        if until_s is not None:
            connected.settimeout(None)
    except OSError as error:
        if ran_out(error):
            raise
        raise ConnectionLost(f"receiving: {error.strerror or error}") from None
    return count


def pop_batch(queued: FrameQueue[Queued], bytes_of: Callable[[Queued], int]) -> list[Queued]:
    """Takes from the front of a queue what may leave together; `bytes_of` it travel as payload."""
    taken: list[Queued] = []
    while queued and len(taken) < BATCH_FRAMES:
        taken.append(queued.popleft())
        if bytes_of(taken[-1]) >= LARGE_BYTES:
            break
    return taken


def close_all(descriptors: Iterable[int]) -> None:
    """Closes what came beside a frame."""
    for descriptor in descriptors:
        os.close(descriptor)


def tune(connected: socket.socket) -> None:
    """Sets the options that a data connection needs."""
    if connected.family != getattr(socket, "AF_UNIX", None):
        with contextlib.suppress(OSError):  # a peer that has gone: the first use says so
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(connected)
            if connected.getpeername()[0] != connected.getsockname()[0]:
                return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_BUFFER_BYTES)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LOCAL_BUFFER_BYTES)


def _keep_alive(connected: socket.socket) -> None:
    """A peer that vanished is noticed: while nothing is sent by probes, else by what it does not confirm."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform.startswith("linux"):
        idle_s, between_s, count = KEEPALIVE_S
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, between_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
        gone_ms = 1000 * (idle_s + between_s * count)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, gone_ms)
