"""TLS on the data port, server end: shakes hands with who connects, and joins the halves of a connection.

A half is a stranger's until its other half is there and HELLO has come: it costs a thread and a TLS state for
at most `HELLO_LIMIT_S`. A handshake never runs on the thread that accepts. `_changed` guards what waits and
what is still shaking hands; who is cut off is not among those any more.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial

from ps_server.log import logger
from ps_server.rpc.greeting import HELLO_LIMIT_S, Greeting
from ps_server.shard.shard import Shard
from ps_server.shard.traffic import Refused
from ps_wire.access.certificates import TlsFolder
from ps_wire.errors import ConnectionLost, FrameMalformed, TlsRefused
from ps_wire.frames import frame as wire
from ps_wire.frames.messages import refused_to_proto
from ps_wire.process import watched
from ps_wire.sockets import tls_socket
from ps_wire.sockets.frame_socket import FrameSocket
from ps_wire.sockets.tls_socket import Half, TlsSocket

REFUSAL_LIMIT_S = 1.0  # for who is refused in frames to read it
FRAME_MAGIC = wire.MAGIC.to_bytes(4, "little")


class TlsPairing:
    """The TLS connections that shake hands, or wait for their other half."""

    def __init__(
        self,
        tls: TlsFolder,
        shard: Shard,
        strangers: Greeting,
        *,
        on_pair: Callable[[TlsSocket], None],
    ) -> None:
        """Takes what `adopt` needs.

        Args:
            tls: certificates; the newest for each handshake.
            shard: counts who is refused.
            strangers: where each half is one.
            on_pair: takes a connection over.
        """
        self._tls = tls
        self._shard = shard
        self._strangers = strangers
        self._on_pair = on_pair
        self._changed = threading.Condition()
        self._shaking: set[ssl.SSLSocket] = set()
        self._waiting: dict[tuple[bytes, bool], Half] = {}
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def adopt(self, plain: socket.socket) -> None:
        """Owns who has connected from now on. Raises RuntimeError or OSError where it cannot be."""
        connection = tls_socket.wrap(plain, self._tls.identity().accepting)
        thread = watched.thread("ps-tls", partial(self._run, connection), log=logger)
        with self._changed:
            self._shaking.add(connection)
            self._threads.add(thread)
        self._strangers.enter(connection, lambda: self._sever(connection))
        try:
            thread.start()
        except RuntimeError:
            self._forget(connection, thread)
            connection.close()
            raise

    def close(self) -> None:
        """Ends every half that is not one of a pair yet."""
        with self._changed:
            self._closed = True
            for connection in self._shaking:
                tls_socket.sever(connection)
            threads = list(self._threads)
            self._changed.notify_all()
        for thread in threads:
            thread.join()

    def _run(self, connection: ssl.SSLSocket) -> None:
        until_s = time.monotonic() + HELLO_LIMIT_S
        joined = False
        try:
            _refuse_frames(connection, until_s)
            joined = self._join(tls_socket.accept(connection, until_s), until_s)
        except (OSError, ConnectionLost, FrameMalformed, TlsRefused) as error:
            if not self._closed:
                self._shard.count_refused(Refused.CONNECTION)
                logger.debug("a data connection over TLS is refused: %s", error)
        finally:
            if not joined:
                connection.close()
            self._forget(connection, threading.current_thread())

    def _sever(self, connection: ssl.SSLSocket) -> None:
        with self._changed:
            self._shaking.discard(connection)
            tls_socket.sever(connection)
            self._changed.notify_all()

    def _forget(self, connection: ssl.SSLSocket, thread: threading.Thread) -> None:
        self._strangers.leave(connection)
        with self._changed:
            self._shaking.discard(connection)
            self._threads.discard(thread)

    def _join(self, half: Half, until_s: float) -> bool:
        """Whether this half is one of a pair now; the one that came second makes it."""
        key, other_key = (half.pair, half.up), (half.pair, not half.up)
        with self._changed:
            other = self._waiting.pop(other_key, None)
            if other is None:
                if key in self._waiting:
                    raise FrameMalformed("this half of a connection is there already")
                self._waiting[key] = half
                self._changed.wait_for(
                    lambda: (
                        self._closed
                        or half.connection not in self._shaking
                        or self._waiting.get(key) is not half
                    ),
                    max(until_s - time.monotonic(), 0.0),
                )
                if self._waiting.get(key) is half:
                    del self._waiting[key]
                    raise ConnectionLost("the other half of a connection did not come")
                return True
            self._changed.notify_all()
        up, down = (half, other) if half.up else (other, half)
        self._on_pair(TlsSocket(down.connection, up.connection))
        return True


def _refuse_frames(connection: ssl.SSLSocket, until_s: float) -> None:
    """Tells who speaks frames without TLS, in frames, that there is TLS here.

    Raises:
        TlsRefused: it does.
        OSError: nothing comes.
    """
    connection.settimeout(max(until_s - time.monotonic(), 1e-3))
    first = socket.socket.recv(connection, len(FRAME_MAGIC), socket.MSG_PEEK)  # not through TLS
    if first != FRAME_MAGIC:
        return
    error = TlsRefused("this data port speaks TLS: set --tls-dir (PS_TLS_DIR)")
    refusal = wire.Frame(kind=wire.Kind.REFUSE, meta=refused_to_proto(error).SerializeToString())
    plain = FrameSocket(socket.socket(fileno=connection.detach()))
    plain.send([refusal])
    plain.end_sending()
    plain.discard(min(until_s, time.monotonic() + REFUSAL_LIMIT_S))
    plain.close()
    raise error
