"""Frames over a connected stream socket, TCP or Unix, for both ends.

Nothing is copied in between: a payload is sent from where it lies, and received where it is to lie. A length
is checked before memory is allocated for it. One thread may send while another one receives.

It must not know what a frame means, nor who may connect.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Sequence

import numpy as np

from ps_wire import frame as wire
from ps_wire.errors import ConnectionLost, FrameTooLarge
from ps_wire.service import Landing

# Of both sockets of a connection within one host. Measured: a buffer that fits into the cores' caches is up
# to twice as fast as what the system gives; between hosts the system's own tuning is better.
LOCAL_BUFFER_BYTES = 128 << 10
MAX_BUFFERS = 64  # in one call of the system; it takes 1024
KEEPALIVE_S = (10, 5, 3)  # idle until a probe is sent, between probes, how many: gone after 25 s
_WHOLE = getattr(socket, "MSG_WAITALL", 0)  # one call for a payload instead of one per 64 KiB


def _nowhere(_frame: wire.Frame, _payload_bytes: int) -> memoryview | None:
    return None


class FrameSocket:
    """See the module's docstring. It owns the socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._header = bytearray(wire.HEADER_BYTES)
        connected.setblocking(True)
        tune(connected)

    def send(self, frames: Sequence[wire.Frame]) -> None:
        """Sends frames one behind the other; returns when the system has taken them.

        Args:
            frames: their payloads must not change meanwhile.

        Raises:
            ConnectionLost: the connection is broken.
        """
        buffers: list[bytes | memoryview] = []
        for frame in frames:
            buffers.append(wire.prefix(frame))
            if frame.payload:
                buffers.append(memoryview(frame.payload))
        place = 0
        try:
            while place < len(buffers):
                sent = self._socket.sendmsg(buffers[place : place + MAX_BUFFERS])
                while place < len(buffers) and sent >= len(buffers[place]):
                    sent -= len(buffers[place])
                    place += 1
                if sent:
                    buffers[place] = memoryview(buffers[place])[sent:]
        except OSError as error:
            raise ConnectionLost(f"sending: {error.strerror or error}") from None

    def receive(
        self,
        landing: Landing = _nowhere,
        *,
        max_body_bytes: int = wire.MAX_META_BYTES + wire.MAX_PAYLOAD_BYTES,
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
            TimeoutError: it is past `until_s`.
        """
        if not self._fill(memoryview(self._header), until_s):
            return None
        head = wire.Header(self._header)
        if head.padded_meta_bytes + head.payload_bytes > max_body_bytes:
            raise FrameTooLarge(
                f"a {head.kind.name} frame announces {head.meta_bytes} bytes of meta and "
                f"{head.payload_bytes} of payload; {max_body_bytes} are taken here"
            )
        meta = memoryview(bytearray(head.padded_meta_bytes))
        payload = self._place(head, landing)
        for part in (meta, payload):
            if len(part) and not self._fill(part, until_s):
                raise ConnectionLost("the stream ended inside a frame")
        return head.frame(meta[: head.meta_bytes], payload)

    @staticmethod
    def _place(head: wire.Header, landing: Landing) -> memoryview:
        if not head.payload_bytes:
            return memoryview(b"")
        place = landing(head.frame(), head.payload_bytes)
        if place is not None:
            assert len(place) == head.payload_bytes
            return place
        return np.empty(head.payload_bytes, dtype=np.uint8).data  # aligned, and not filled with zeros

    def _fill(self, buffer: memoryview, until_s: float | None) -> bool:
        """Fills the buffer; False where the stream ends before its first byte."""
        place = 0
        try:
            while place < len(buffer):
                if until_s is not None:
                    self._socket.settimeout(max(until_s - time.monotonic(), 1e-3))
                count = self._socket.recv_into(buffer[place:], 0, _WHOLE)
                if count == 0:
                    break
                place += count
            if until_s is not None:
                self._socket.settimeout(None)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionLost(f"receiving: {error.strerror or error}") from None
        if 0 < place < len(buffer):
            raise ConnectionLost("the stream ended inside a frame")
        return place > 0

    def discard(self, until_s: float) -> None:
        """Takes what still comes, until the other end has ended the stream too, or until that time.

        Closing with bytes that nobody has read resets a connection: the other end might lose what it was
        sent last.
        """
        with contextlib.suppress(OSError):
            while (left_s := until_s - time.monotonic()) > 0:
                self._socket.settimeout(left_s)
                if not self._socket.recv_into(self._header):
                    return

    def end_sending(self) -> None:
        """Nothing more is sent; the other end sees the end of the stream behind what was."""
        self._shut(socket.SHUT_WR)

    def cut(self) -> None:
        """Ends both directions at once; whoever sends or receives returns. Any thread."""
        self._shut(socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the socket; no thread may be using it."""
        self._socket.close()

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):  # it may be broken already
            self._socket.shutdown(how)


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
