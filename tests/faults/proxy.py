"""A TCP proxy that breaks connections where it is told to, and keeps its two sides apart for a while."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterable
from typing import Self

from tests.integration.processes import LIMIT_S

RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST


class Proxy:
    """Forwards to `target` until a connection has carried as many bytes up as the next cut says.

    Then this connection is reset on both sides, at that very byte, and the next cut is waited for. With no
    cut left it only forwards.

    Attributes:
        address: where it listens.
        resets: how many connections it has broken.
    """

    def __init__(self, target: str, cuts: Iterable[int] = ()) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.resets = 0
        self._cuts = list(cuts)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._mute = threading.Event()
        self._silent = threading.Event()
        self._apart = threading.Event()
        self._tries = threading.Semaphore(0)
        self._kept: list[socket.socket] = []
        self._lock = threading.Lock()  # guards the cuts and the pairs

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.mend()
        self.reset()

    @property
    def cuts_left(self) -> int:
        """Cuts that no connection has reached yet."""
        return len(self._cuts)

    def mute(self) -> None:
        """From now on what the target says is swallowed: acks are lost, pushes are not."""
        self._mute.set()

    def reset(self) -> None:
        """Breaks every connection and lets the next ones speak again."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            self._break(pair)
        self._mute.clear()

    def silence(self) -> None:
        """From now on what either side says is swallowed, on connections that stay and on those that come."""
        self._silent.set()

    def speak(self) -> None:
        """After `silence`: connections that were silent break, the next ones carry."""
        self._silent.clear()
        self.reset()

    def cut(self) -> None:
        """Clients lose their connections, and get none that lasts; the target hears nothing of it."""
        self._tries = threading.Semaphore(0)
        self._apart.set()
        self._part()

    def wait_tries(self, count: int) -> None:
        """Until clients have tried so often to come through a cut."""
        for _ in range(count):
            assert self._tries.acquire(timeout=LIMIT_S), "nobody tries any more"

    def mend(self) -> None:
        """After `cut`: the target hears that its connections have ended, and clients come through again."""
        self._apart.clear()
        with self._lock:
            kept, self._kept = self._kept, []
        for server in kept:
            _close(server)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._apart.is_set():
                _close(client)
                self._tries.release()
                continue
            try:
                pair = client, socket.create_connection(self._target)
            except OSError:  # the target is dead, and has another process soon
                _close(client)
                continue
            with self._lock:
                self._pairs.append(pair)
            if self._apart.is_set():
                self._part()
            for end in pair:
                with contextlib.suppress(OSError):  # it may have been cut
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._up, args=(pair,), daemon=True).start()
            threading.Thread(target=self._down, args=(pair,), daemon=True).start()

    def _part(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self._kept += [server for _, server in pairs]
        for client, _ in pairs:
            _close(client)

    def _up(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        carried = 0
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                with self._lock:
                    cut = self._cuts[0] if self._cuts else None
                    reached = cut is not None and carried + len(data) >= cut
                    if reached:
                        del self._cuts[0]
                if reached:
                    server.sendall(data[: cut - carried])
                    self._break(pair)
                    return
                carried += len(data)
                if not self._silent.is_set():
                    server.sendall(data)
        self._end(pair)

    def _down(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                if not (self._mute.is_set() or self._silent.is_set()):
                    client.sendall(data)
        self._end(pair)

    def _break(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self.resets += 1
        for end in pair:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        for end in pair:
            if end not in self._kept:
                _close(end)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
