"""An HTTP/2 client of a few lines, for what gRPC's own never does: messages that are never whole, silence."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from typing import Self

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Connection:
    """To a port without TLS; shakes hands at once. After `limit_s` in all, reading raises TimeoutError."""

    def __init__(self, address: str, limit_s: float) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=limit_s)
        self._until_s = time.monotonic() + limit_s
        self._received = bytearray()
        self._streams = iter(range(1, 1 << 30, 2))
        self._socket.sendall(PREFACE + _frame(SETTINGS, 0, 0, b""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def begin(self, path: str, message_bytes: int, sent: bytes) -> int:
        """A call whose message is said to have so many bytes, of which these are sent; returns its stream."""
        stream = next(self._streams)
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
        self._socket.sendall(_frame(HEADERS, END_HEADERS, stream, block))
        self._socket.sendall(_frame(DATA, 0, stream, struct.pack(">BI", 0, message_bytes) + sent))
        return stream

    def frames(self) -> Iterator[tuple[int, int, int]]:
        """Kind, flags and stream of what comes, until the server closes the connection."""
        while (head := self._take(9)) is not None:
            size = int.from_bytes(head[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            body = self._take(size)
            if kind == PING and not flags & ACK:
                with contextlib.suppress(OSError):
                    self._socket.sendall(_frame(PING, ACK, 0, body or b""))
            if kind == SETTINGS and not flags & ACK:  # else gRPC itself ends the connection after a minute
                with contextlib.suppress(OSError):
                    self._socket.sendall(_frame(SETTINGS, ACK, 0, b""))
            yield kind, flags, stream

    def ended(self, streams: set[int]) -> None:
        """Returns when the server has ended these."""
        for kind, flags, stream in self.frames():
            if kind == RST_STREAM or (flags & END_STREAM and kind in (DATA, HEADERS)):
                streams.discard(stream)
            if not streams:
                return
        raise AssertionError(f"the connection ended, and streams {streams} did not")

    def _take(self, size: int) -> bytes | None:
        while len(self._received) < size:
            self._socket.settimeout(max(self._until_s - time.monotonic(), 0.01))
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._received += data
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + body


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()
