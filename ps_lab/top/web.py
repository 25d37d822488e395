"""The same view as a web page: one self-contained page, and views that follow it as server-sent events.

Served by this process, never by a server of the project. Few browsers are served at a time, each on a thread;
one more is told so. A view is made once for all of them; who reads slowly misses views and holds up nobody.
There is no login: it listens on loopback unless told, and there it answers only browsers that asked for
loopback by name, so that no page of somebody else's reads it through them.
"""

from __future__ import annotations

import http.server
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from importlib import resources

from ps_lab.status.json_text import json_text
from ps_lab.top.view import View
from ps_wire.errors import Unavailable
from ps_wire.spec.address import is_loopback

MOST_CLIENTS = 16  # browsers that follow
CLIENT_LIMIT_S = 10.0  # for a request to come, and for a view to be read
KEEP_ALIVE_S = 5.0  # without a new view, so that a browser that has gone is noticed
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
PAGE = "page.html"


class Broadcast:
    """The newest view as text, for all who follow. `_changed` guards it."""

    def __init__(self) -> None:
        """There is none yet."""
        self._changed = threading.Condition()
        self._number = 0
        self._text = ""
        self._over = False

    def put(self, view: View) -> None:
        """There is a newer one."""
        text = json_text(view.to_json())
        with self._changed:
            self._number += 1
            self._text = text
            self._changed.notify_all()

    def end(self) -> None:
        """There will be none any more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def after(self, number: int, limit_s: float) -> tuple[int, str] | None:
        """The newest one and its number, once it is newer than that; empty if none came; None: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._number > number, limit_s)
            if self._over:
                return None
            return (self._number, self._text) if self._number > number else (number, "")


class WebServer:
    """The page's server, on a thread of its own and one for each request.

    Attributes:
        url: for a browser.
    """

    def __init__(self, host: str, port: int) -> None:
        """Listens; nothing is answered before `begin`.

        Raises:
            Unavailable: the port is in use, or the host is not ours to bind.
        """
        self.broadcast = Broadcast()
        places = threading.BoundedSemaphore(MOST_CLIENTS)
        page = resources.files("ps_lab.top").joinpath(PAGE).read_bytes()
        names = LOCAL_NAMES if is_loopback(host) else None

        class Handler(_Handler):
            pass

        Handler.broadcast, Handler.places, Handler.page, Handler.names = self.broadcast, places, page, names
        try:
            self._server = _Server((host.strip("[]"), port), Handler)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {host}:{port}: {error.strerror or error} (--serve)"
            ) from None
        shown = "localhost" if is_loopback(host) else host
        self.url = f"http://{shown}:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="top-web", daemon=True)

    def begin(self) -> None:
        """Answers from now on."""
        self._thread.start()

    def close(self) -> None:
        """Ends it; who follows is let go."""
        self.broadcast.end()
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def serve(moments: Iterator[View], host: str, port: int, *, say: Callable[[str], object]) -> None:
    """Serves each view as it comes, until Ctrl-C; `say` tells a person where.

    Raises:
        PsError: the servers refuse, or do not answer the first time; or it cannot listen.
    """
    server = WebServer(host, port)
    try:
        server.broadcast.put(next(moments))
        server.begin()
        say(server.url)
        for view in moments:
            server.broadcast.put(view)
    finally:
        server.close()


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * MOST_CLIENTS

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._room = threading.BoundedSemaphore(2 * MOST_CLIENTS)
        super().__init__(address, handler)

    def process_request(self, request: object, client_address: object) -> None:
        """On a thread, of which there are few: one too many is closed at once."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        """The thread's; see `socketserver`."""
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that has gone, or reads nothing, is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    broadcast: Broadcast
    places: threading.BoundedSemaphore
    page: bytes
    names: frozenset[str] | None
    timeout = CLIENT_LIMIT_S
    server_version, sys_version = "ps-lab", ""

    def do_GET(self) -> None:
        """The page, or the views."""
        if not self._is_meant():
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "this is served on loopback only")
        elif self.path == "/":
            self._send_page()
        elif self.path == "/views":
            self._follow()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, *_: object) -> None:
        """Nothing: the terminal is a person's."""

    def _is_meant(self) -> bool:
        """Whether the browser thinks that it speaks to us: else a name of somebody's leads here."""
        if self.names is None:
            return True
        host = self.headers.get("Host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return name.lower() in self.names

    def _send_page(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(self.page)))
        policy = (
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        )
        self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(self.page)

    def _follow(self) -> None:
        if not self.places.acquire(blocking=False):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_CLIENTS} browsers follow already")
            return
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            number = 0
            while (found := self.broadcast.after(number, KEEP_ALIVE_S)) is not None:
                number, text = found
                self.wfile.write(f"data: {text}\n\n".encode() if text else b": still here\n\n")
                self.wfile.flush()
        finally:
            self.places.release()
