"""A worker's end of a data connection over a socket: `uds`, `tcp`, and `shm`, which sends no payloads.

It is open when the shard's HELLO is here, which proves that the right shard was reached. A thread of its own
sends, from the memory that a frame names; the connection's thread receives, into the memory that it names.

It must not know what frames mean beyond HELLO.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Self

from ps_wire.access.certificates import TlsFolder
from ps_wire.errors import ConnectionLost, InternalError, ServerUnreachable
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Carrier
from ps_wire.frames.lists import joined
from ps_wire.frames.service import FramesOut, Landing
from ps_wire.frames.terms import whole
from ps_wire.process import watched
from ps_wire.sockets import tls_socket
from ps_wire.sockets.frame_socket import FrameSocket
from ps_wire.sockets.unix_peer import other_user
from ps_wire.v1 import shard_pb2
from ps_worker.process import after_fork
from ps_worker.transport.connection import refusal

logger = logging.getLogger("ps_worker")

JOIN_LIMIT_S = 5.0  # for a sending thread that was told to end; it waits for nobody then


class SocketStream:
    """A `DataStream`."""

    def __init__(
        self, connected: socket.socket, frames: FramesOut, landing: Landing, *, shares: bool
    ) -> None:
        """Takes the socket over; `greet` comes next.

        Args:
            connected: to the shard.
            frames: to send.
            landing: see `ps_wire.frames.service`.
            shares: payloads of tables that the shard was told of by SHARE lie in memory that it maps, and do
                not travel.
        """
        self._peer = FrameSocket(connected)
        self._frames = frames
        self._shares = shares
        self._tables: set[int] = set()  # whose memory the shard maps
        self._landing = landing
        self._hello: wire.Frame | None = None
        self._bug: Exception | None = None  # that has ended the sending thread
        self._sender = watched.thread("ps-send", self._send, log=logger, failed=lambda _: self._peer.sever())

    def greet(self, until_s: float) -> None:
        """Sends the first frame, waits for the answer, and begins to send the others.

        Args:
            until_s: of the monotonic clock.

        Raises:
            ConnectionLost: nobody answered in time, or the connection broke.
            PsError: the shard refuses, or what answered speaks no frames.
        """
        self._peer.send([self._shared(next(self._frames))])
        try:
            self._hello = self._peer.receive(until_s=until_s)
        except TimeoutError:
            raise ConnectionLost("connected, and no HELLO came back") from None
        if self._hello is None:
            raise ConnectionLost("connected, and closed before HELLO")
        if self._hello.kind is wire.Kind.REFUSE:
            raise refusal(self._hello)
        self._sender.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> wire.Frame:
        if self._hello is not None:
            frame, self._hello = self._hello, None
        else:
            received = self._receive()
            if received is None:
                raise StopIteration
            frame = received
        return frame

    def _receive(self) -> wire.Frame | None:
        received = None
        try:
            received = self._peer.receive(self._landing)
        except ConnectionLost:
            if self._bug is None:
                raise
        if received is None and self._bug is not None:  # another connection would meet it again
            raise InternalError(f"sending: {type(self._bug).__name__}: {self._bug}")
        return received

    def cancel(self) -> None:
        """See `DataStream.cancel`."""
        self._peer.sever()

    def close(self) -> None:
        """See `DataStream.close`."""
        self._peer.sever()
        if self._sender.ident is not None:
            self._sender.join(JOIN_LIMIT_S)
        self._peer.close()

    def _send(self) -> None:
        try:
            while frames := self._frames.batch(self._travelling):
                if self._shares:
                    frames = list(joined(list(map(self._shared, frames))))
                else:
                    frames = [whole(frame) for frame in frames if frame.kind is not wire.Kind.SHARE]
                self._peer.send(frames)
        except ConnectionLost:
            pass  # whoever receives finds out, too
        except Exception as error:
            logger.exception("bug while sending to a shard")
            self._bug = error
            self._peer.sever()
        self._peer.end_sending()

    def _travelling(self, frame: wire.Frame) -> int:
        """Bytes of a frame's payload that travel."""
        return 0 if frame.table in self._tables else frame.nbytes

    def _shared(self, frame: wire.Frame) -> wire.Frame:
        """The frame as it leaves: without its payload, where that lies in shared memory."""
        if frame.kind is wire.Kind.SHARE:
            (self._tables.add if frame.descriptors else self._tables.discard)(frame.table)
        shares = self._shares and frame.kind is wire.Kind.HELLO
        if shares or self._travelling(frame) < frame.nbytes:
            flags = frame.flags | wire.SHARED | wire.RANKS * bool(frame.terms)
            return frame.but(payload=b"", terms=(), flags=flags)
        return whole(frame)


def reach(
    offer: shard_pb2.Carrier,
    address: str,
    frames: FramesOut,
    *,
    landing: Landing,
    limit_s: float,
    tls: TlsFolder | None = None,
) -> SocketStream:
    """Opens a data connection as the shard offers it.

    Args:
        offer: of a carrier in `DOORS`.
        address: HOST:PORT of the shard's control plane.
        frames: to send; the first is HELLO.
        landing: see `ps_wire.frames.service`.
        limit_s: within which HELLO must be back.
        tls: certificates, for `tcp`; None: without TLS.

    Raises:
        ServerUnreachable: nobody listens there, as far as this host can see, or TLS fails.
        PsError: see `SocketStream.greet`.
    """
    until_s = time.monotonic() + limit_s
    try:
        if tls is not None and offer.name == Carrier.TCP:
            connected = _tcp_over_tls(offer.address, address, limit_s, tls)
        else:
            connected = DOORS[offer.name](offer.address, address, limit_s)
    except OSError as error:
        raise ServerUnreachable(f"{error.strerror or error}") from None
    stream = SocketStream(connected, frames, landing, shares=offer.name == Carrier.SHM)
    try:
        stream.greet(until_s)
    except BaseException:
        stream.close()
        raise
    return stream


def _unix(name: str, _control: str, limit_s: float) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise OSError("no Unix sockets here")
    address = f"\0{name[1:]}" if name.startswith("@") else name
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    after_fork.remember_unix(address)
    try:
        made.settimeout(limit_s)
        made.connect(address)
        _check_user(made)
    except BaseException:
        made.close()
        raise
    return made


def _check_user(made: socket.socket) -> None:
    """Another user's process would get the token, and memory to map."""
    if (user := other_user(made)) is not None:
        raise OSError(f"what listens there is a process of user {user}, not of {os.geteuid()} or root")


def _tcp(port: str, control: str, limit_s: float) -> socket.socket:
    return socket.create_connection((_host(port, control), int(port)), limit_s)


def _tcp_over_tls(port: str, control: str, limit_s: float, tls: TlsFolder) -> socket.socket:
    connecting = tls.identity().connecting
    return tls_socket.connect(_host(port, control), int(port), connecting, limit_s).as_socket()


def _host(port: str, control: str) -> str:
    host = control.rpartition(":")[0].strip("[]")
    after_fork.remember(f"{host}:{port}")
    return host


DOORS: Mapping[str, Callable[[str, str, float], socket.socket]] = {
    Carrier.SHM: _unix,
    Carrier.UDS: _unix,
    Carrier.TCP: _tcp,
}
