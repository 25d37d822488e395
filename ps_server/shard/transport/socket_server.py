"""The socket carriers, server end: listens on `uds` and `tcp`, and lets in who has said HELLO in time.

It must not know what frames mean. With certificates, `tcp` speaks TLS (`tls_pairing`). Each listener
has strangers of its own. A Unix socket takes peers of this user and of root only.
"""

from __future__ import annotations

import errno
import os
import secrets
import selectors
import shutil
import socket
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from ps_server.log import logger
from ps_server.rpc.greeting import Greeting
from ps_server.shard.shard import Shard
from ps_server.shard.traffic import Refused
from ps_server.shard.transport.socket_connection import CLOSE_LIMIT_S, SocketConnection
from ps_server.shard.transport.tls_pairing import TlsPairing
from ps_wire.access.certificates import TlsFolder
from ps_wire.errors import StrangerRefused, Unavailable
from ps_wire.frames.carrier import Carrier
from ps_wire.process import watched
from ps_wire.sockets.frame_socket import FrameSocket
from ps_wire.sockets.shared_memory import AVAILABLE
from ps_wire.sockets.tls_socket import TlsSocket
from ps_wire.sockets.unix_peer import other_user
from ps_wire.v1 import shard_pb2

BACKLOG = 128
PAUSE_S = 0.1  # when the system has no descriptor left for who wants to connect
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class SocketServer:
    """The listener of `uds` and `tcp`, and its connections.

    One thread accepts; `_lock` guards the connections.

    Attributes:
        offers: of a shard's `Open`: carriers with their addresses, best first.
        strangers: of each listener, by its carrier.
    """

    def __init__(self, shard: Shard, *, host: str, port: int, tls: TlsFolder | None = None) -> None:
        """Listens; who connects waits until `open`.

        Args:
            shard: that serves.
            host: to bind for `tcp`.
            port: of `tcp`; 0 lets the system choose.
            tls: certificates for `tcp`; None: without TLS.

        Raises:
            Unavailable: the port is in use, or the host is not ours to bind.
        """
        self._shard = shard
        self._lock = threading.Lock()
        self._connections: set[SocketConnection] = set()
        refused = partial(shard.count_refused, Refused.CONNECTION)
        self.strangers = {name: Greeting(refused) for name in (Carrier.UDS, Carrier.TCP)}
        self._exhausted = False
        self._folder: Path | None = None
        self._stopping, self._opened = threading.Event(), threading.Event()
        self._pairing = (
            TlsPairing(tls, shard, self.strangers[Carrier.TCP], on_pair=self._paired)
            if tls is not None
            else None
        )
        self.offers: list[shard_pb2.Carrier] = []
        self._listeners: dict[socket.socket, Carrier] = {}
        try:
            if hasattr(socket, "AF_UNIX"):
                listener, address = self._listen_unix()
                if AVAILABLE:
                    self.offers.append(shard_pb2.Carrier(name=Carrier.SHM, address=address))
                self._offer(Carrier.UDS, listener, address)
            self._offer(Carrier.TCP, *_listen_tcp(host, port))
        except BaseException:
            self._close_listeners()
            raise
        self._wake, self._woken = socket.socketpair()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Starts the thread that accepts, which waits for `open`: all that can fail has been done then."""
        self._thread = watched.endless_thread(
            "ps-accept", self._accept_all, log=logger, pause=self._stopping.wait
        )
        self._thread.start()

    def open(self) -> None:
        """Lets in who connects, and who has waited."""
        self._opened.set()

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Lets nobody in any more, sends what is queued, for at most `limit_s`, and frees everything."""
        until_s = time.monotonic() + limit_s
        self._stopping.set()
        self._opened.set()
        self._wake.send(b"\0")
        if self._thread is not None:
            self._thread.join()
        self._wake.close()
        self._woken.close()
        self._close_listeners()
        if self._pairing is not None:
            self._pairing.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.stop()
        for connection in connections:
            connection.join(until_s)

    # -- listening -------------------------------------------------------------------------------------

    def _offer(self, carrier: Carrier, listener: socket.socket, address: str) -> None:
        listener.setblocking(False)
        self._listeners[listener] = carrier
        self.offers.append(shard_pb2.Carrier(name=carrier, address=address))

    def _listen_unix(self) -> tuple[socket.socket, str]:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"ps-{secrets.token_hex(16)}"
        if sys.platform.startswith("linux"):  # a name of the kernel's: it goes with the process
            listener.bind(f"\0{name}")
            address = f"@{name}"
        else:
            self._folder = Path(tempfile.mkdtemp(prefix="ps-"))  # ours alone
            address = str(self._folder / "data")
            listener.bind(address)
        listener.listen(BACKLOG)
        return listener, address

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- the accepting thread --------------------------------------------------------------------------

    def _accept_all(self) -> None:
        self._opened.wait()
        with selectors.DefaultSelector() as selector:
            for listener in self._listeners:
                selector.register(listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._stopping.is_set():
                for key, _ in selector.select():
                    if isinstance(key.fileobj, socket.socket) and key.fileobj is not self._woken:
                        self._accept(key.fileobj)

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:  # the peer still waits, so selecting would return at once
                if not self._exhausted:
                    logger.error("cannot take a data connection: %s; trying on", error.strerror)
                self._exhausted = True
                self._stopping.wait(PAUSE_S)
            return
        self._exhausted = False
        try:
            carrier = self._listeners[listener]
            if self._pairing is not None and carrier is Carrier.TCP:
                self._pairing.adopt(peer)
            else:
                self._begin(peer, carrier)
        except (OSError, RuntimeError) as error:  # it has gone already; or there can be no more threads
            _failed(peer, error)

    def _paired(self, peer: TlsSocket) -> None:
        try:
            self._begin(peer.as_socket(), Carrier.TCP)
        except (OSError, RuntimeError) as error:
            _failed(peer, error)

    def _begin(self, peer: socket.socket, carrier: Carrier) -> None:
        strangers = self.strangers[carrier]
        connection = SocketConnection(
            self._shard,
            FrameSocket(peer),
            carrier=carrier,
            refusal=_stranger(peer) if carrier is Carrier.UDS else None,
            on_greeted=strangers.leave,
            on_closed=self._closed,
        )
        with self._lock:
            self._connections.add(connection)
        strangers.enter(connection, connection.sever)
        try:
            connection.start()
        except RuntimeError:
            strangers.leave(connection)
            self._closed(connection)
            raise

    def _closed(self, connection: SocketConnection) -> None:
        with self._lock:
            self._connections.discard(connection)


def _failed(peer: socket.socket | TlsSocket, error: Exception) -> None:
    logger.error("cannot take a data connection: %s", error)
    peer.close()


def _listen_tcp(host: str, port: int) -> tuple[socket.socket, str]:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(
            (str(address[0]), port), family=family, backlog=BACKLOG, dualstack_ipv6=both
        )
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port} for data: {error.strerror or error} (--data-port)"
        ) from None
    return listener, str(listener.getsockname()[1])


def _stranger(peer: socket.socket) -> StrangerRefused | None:
    """Why the process at the other end of a Unix socket may not connect."""
    user = other_user(peer)
    if user is None:
        return None
    return StrangerRefused(f"a process of user {user} may not connect: this server is user {os.geteuid()}'s")
