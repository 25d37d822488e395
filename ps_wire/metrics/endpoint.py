"""The port on which a process shows its metrics, `GET /metrics`: one thread, off unless a port is named.

It speaks just enough HTTP/1.1 for a scrape, one after the other. What a stranger costs is bounded:
`REQUEST_LIMIT_S` for a handshake of TLS and for a request, `MAX_REQUEST_BYTES` of it. With a token each
request must carry the service's, as `Authorization: Bearer`; with certificates it speaks TLS 1.3, and both
ends show one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable

from ps_wire.access.access import Access
from ps_wire.access.token import AUTHORIZATION, TokenCheck
from ps_wire.errors import TokenRefused, Unavailable
from ps_wire.process import watched

REQUEST_LIMIT_S = 2.0  # Prometheus sends its request at once
ANSWER_LIMIT_S = 5.0  # for the peer to read
MAX_REQUEST_BYTES = 8 << 10
PATH = "/metrics"
BACKLOG = 16
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_listeners: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # of this process


def _let_go() -> None:
    """In a child, right after the fork: else it would hold the port when its parent has gone."""
    for listener in tuple(_listeners):
        listener.close()


os.register_at_fork(after_in_child=_let_go)


class MetricsEndpoint:
    """A listener with its thread, or nothing where no port is named. `close` ends both.

    Attributes:
        port: that it listens on; None: it does not.
    """

    def __init__(
        self,
        host: str,
        port: int | None,
        render: Callable[[], bytes],
        *,
        access: Access,
        log: logging.Logger,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """Listens; who connects waits until `begin`.

        Args:
            host: to bind.
            port: 0 lets the system choose; None: there is no endpoint.
            render: makes the text, on the thread of the endpoint.
            access: certificates and tokens.
            log: for what went wrong.
            refused: counts who was not answered.

        Raises:
            Unavailable: the port is in use, or the host is not ours to bind.
        """
        self._render = render
        self._tls = access.tls
        self._check = None if access.token is None else TokenCheck(access.tokens)
        self._log = log
        self._refused = refused
        self._closed = threading.Event()
        self._host = host
        self.port: int | None = None
        if port is None:
            return
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._listener = socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {host}:{port} for metrics: {error.strerror or error} (--metrics-port)"
            ) from None
        self.port = int(self._listener.getsockname()[1])
        _listeners.add(self._listener)
        self._thread = watched.endless_thread("ps-metrics", self._serve, log=log, pause=self._closed.wait)

    def begin(self) -> None:
        """Answers from now on."""
        if self.port is not None:
            self._thread.start()
            self._log.info("metrics on %s:%d", self._host, self.port)

    def close(self) -> None:
        """Answers nobody any more; returns when its thread has ended, at most a request later."""
        self._closed.set()
        if self.port is None:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes `accept`
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                peer, _ = self._listener.accept()
            except OSError:
                self._closed.wait(0.1)  # no descriptor is left; or it is closed
                continue
            with peer:
                try:
                    self._answer(peer)
                except OSError:  # it has gone, or TLS is not what it speaks
                    self._refused()

    def _answer(self, plain: socket.socket) -> None:
        until_s = time.monotonic() + REQUEST_LIMIT_S
        plain.settimeout(REQUEST_LIMIT_S)
        peer = plain
        if self._tls is not None:
            peer = self._tls.identity().accepting.wrap_socket(plain, server_side=True)
        with peer:
            request = _read(peer, until_s)
            status, body = self._reply(request)
            if status != "200 OK":
                self._refused()
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n"
            )
            peer.settimeout(ANSWER_LIMIT_S)
            peer.sendall(head.encode() + body)
            with contextlib.suppress(OSError):
                if isinstance(peer, ssl.SSLSocket):
                    peer.unwrap()

    def _reply(self, request: bytes | None) -> tuple[str, bytes]:
        if request is None:
            return "400 Bad Request", b"no request came in time\n"
        lines = request.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or words[0] != "GET":
            return "405 Method Not Allowed", b"only GET\n"
        if self._check is not None:
            headers = dict(_header(line) for line in lines[1:])
            try:
                self._check.caller(headers).check_service("read metrics")
            except TokenRefused as error:
                return "401 Unauthorized", f"{error.message}\n".encode()
        if words[1].partition("?")[0] != PATH:
            return "404 Not Found", f"metrics are at {PATH}\n".encode()
        try:
            return "200 OK", self._render()
        except TimeoutError:
            return "503 Service Unavailable", b"the process is too busy to say how it is\n"


def _read(peer: socket.socket, until_s: float) -> bytes | None:
    """The head of a request; None: it did not come in time, or is too long."""
    data = b""
    while b"\r\n\r\n" not in data:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or len(data) > MAX_REQUEST_BYTES:
            return None
        peer.settimeout(left_s)
        try:
            part = peer.recv(4096)
        except TimeoutError:
            return None
        if not part:
            return None
        data += part
    return data.partition(b"\r\n\r\n")[0]


def _header(line: str) -> tuple[str, str]:
    """Its name as metadata of calls has it."""
    name, _, value = line.partition(":")
    return (AUTHORIZATION if name.strip().lower() == AUTHORIZATION else name), value.strip()
