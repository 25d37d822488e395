"""A data connection over TLS: two TCP connections, one per direction, that look like one socket.

Two threads may not use one TLS connection at the same time, and a data connection has one that sends and one
that receives. So each has a TLS connection of its own, whose other direction is used for the handshake only.
The connecting end draws a number and says it on both, so that the accepting end finds the halves that belong
together; nobody else knows it. A pair lives and dies together: where one half breaks, the other is severed.

It must not know what frames are. The end of a stream is TCP's, without TLS's own: a frame that is cut off is
noticed by its length, and one that never came by its missing answer.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from ps_wire.errors import ConnectionLost, FrameMalformed

RECORD_BYTES = 16 << 10  # of TLS; what is smaller goes together into one
MAGIC = b"PSt1"
UP, DOWN = b"U", b"D"  # from the connecting end, and to it
PAIR_BYTES = 16
_PREFACE_BYTES = len(MAGIC) + len(UP) + PAIR_BYTES
_WHOLE = getattr(socket, "MSG_WAITALL", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One of the two connections, after its handshake, at the accepting end.

    Attributes:
        connection: of this half.
        up: whether the connecting end sends on it.
        pair: the number that both halves of a pair say.
    """

    connection: ssl.SSLSocket
    up: bool
    pair: bytes


class TlsSocket:
    """Two TLS connections as one socket, as `FrameSocket` needs it. It owns both connections.

    One thread may send while another one receives; any thread may call `shutdown`.
    """

    family = socket.AF_INET

    def __init__(self, sending: ssl.SSLSocket, receiving: ssl.SSLSocket) -> None:
        self._sending = sending
        self._receiving = receiving

    def as_socket(self) -> socket.socket:
        """Itself, for who takes sockets and calls no more of them than there is here."""
        return cast(socket.socket, self)

    def sendmsg(self, buffers: Iterable[bytes | memoryview]) -> int:
        """Sends all of all buffers; returns how many bytes. Small ones leave together."""
        small = bytearray()
        total = 0
        try:
            for buffer in buffers:
                total += len(buffer)
                if small and len(small) + len(buffer) > RECORD_BYTES:
                    self._sending.sendall(small)
                    small = bytearray()
                if len(buffer) > RECORD_BYTES:
                    self._sending.sendall(buffer)
                else:
                    small += buffer
            if small:
                self._sending.sendall(small)
        except OSError:
            self.shutdown(socket.SHUT_RDWR)
            raise
        return total

    def recv_into(self, buffer: memoryview | bytearray, nbytes: int = 0, flags: int = 0) -> int:
        """Receives at least a byte, with MSG_WAITALL all that fits; fewer at the end of the stream."""
        view = memoryview(buffer)[: nbytes or None]
        filled = 0
        try:
            while filled < len(view):
                count = self._receiving.recv_into(view[filled:])  # at most a record
                filled += count
                if not count or not flags & _WHOLE:
                    break
        except OSError as error:
            if not ran_out(error):
                self.shutdown(socket.SHUT_RDWR)
            raise
        return filled

    def settimeout(self, limit_s: float | None) -> None:
        """For receiving; sending has no limit."""
        self._receiving.settimeout(limit_s)

    def setblocking(self, flag: bool) -> None:
        """Of both directions."""
        for half in (self._sending, self._receiving):
            half.setblocking(flag)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Of both connections."""
        for half in (self._sending, self._receiving):
            half.setsockopt(level, option, value)

    def getpeername(self) -> tuple[str, int]:
        """The other end's host and port, of the half that receives."""
        name = self._receiving.getpeername()
        return str(name[0]), int(name[1])

    def getsockname(self) -> tuple[str, int]:
        """Our host and port, of the half that receives."""
        name = self._receiving.getsockname()
        return str(name[0]), int(name[1])

    def shutdown(self, how: int) -> None:
        """SHUT_WR ends what is sent; SHUT_RDWR ends everything at once, on any thread."""
        sever(self._sending, how)
        if how == socket.SHUT_RDWR:
            sever(self._receiving, how)

    def close(self) -> None:
        """Frees both; no thread may be using them."""
        self._sending.close()
        self._receiving.close()


def ran_out(error: OSError) -> bool:
    """Whether what ended a call of a socket is the limit that we have set; the socket is as good as before.

    Python raises TimeoutError for the system's ETIMEDOUT, too: TCP has given the peer up. That has a number.
    """
    return isinstance(error, TimeoutError) and error.errno is None


def sever(connection: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Shuts the TCP connection below; whoever sends or receives on it returns. Any thread."""
    with contextlib.suppress(OSError):
        # SSLSocket's own method takes the TLS state from under the thread that uses it
        socket.socket.shutdown(connection, how)


def connect(host: str, port: int, context: ssl.SSLContext, limit_s: float) -> TlsSocket:
    """Opens a pair to a server.

    Args:
        host: whose name must be in the server's certificate.
        port: of its data.
        context: of an `Identity`, for connecting.
        limit_s: within which both halves are open.

    Raises:
        OSError: nobody listens there, or TLS fails (`ssl.SSLError`).
    """
    until_s = time.monotonic() + limit_s
    pair = secrets.token_bytes(PAIR_BYTES)
    halves: list[ssl.SSLSocket] = []
    try:
        for direction in (UP, DOWN):
            plain = socket.create_connection((host, port), limit_s)
            halves.append(_wrap(plain, context, server_hostname=host, server_side=False))
            halves[-1].settimeout(max(until_s - time.monotonic(), 1e-3))
            halves[-1].do_handshake()
            halves[-1].sendall(MAGIC + direction + pair)
    except BaseException:
        for half in halves:
            half.close()
        raise
    up, down = halves
    return TlsSocket(up, down)


def wrap(plain: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Who was accepted, before the handshake; `plain` is used up."""
    return _wrap(plain, context, server_hostname=None, server_side=True)


def accept(connection: ssl.SSLSocket, until_s: float) -> Half:
    """Shakes hands with who has connected, and hears which half of which pair it is.

    Args:
        connection: made by `wrap`.
        until_s: of the monotonic clock; what takes longer raises TimeoutError.

    Raises:
        OSError: the handshake fails (`ssl.SSLError`), or the connection breaks.
        ConnectionLost: it ends before it says what it is.
        FrameMalformed: what it says is no half.
    """
    connection.settimeout(max(until_s - time.monotonic(), 1e-3))
    connection.do_handshake()
    preface = b""
    while len(preface) < _PREFACE_BYTES:
        connection.settimeout(max(until_s - time.monotonic(), 1e-3))
        part = connection.recv(_PREFACE_BYTES - len(preface))
        if not part:
            raise ConnectionLost("it ended before it said which half of a connection it is")
        preface += part
    direction = preface[len(MAGIC) : -PAIR_BYTES]
    if not preface.startswith(MAGIC) or direction not in (UP, DOWN):
        raise FrameMalformed("a connection over TLS starts with which half of which pair it is")
    return Half(connection=connection, up=direction == UP, pair=preface[-PAIR_BYTES:])


def _wrap(
    plain: socket.socket, context: ssl.SSLContext, *, server_hostname: str | None, server_side: bool
) -> ssl.SSLSocket:
    try:
        # Else each small message of a handshake waits 40 ms for the one before it to be confirmed.
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(
            plain,
            server_side=server_side,
            server_hostname=server_hostname,
            do_handshake_on_connect=False,
        )
    except BaseException:
        plain.close()
        raise
