"""The limit of sockets: as many connections and bytes as a round has, both ways at once, and nothing else.

A server answers a worker's first bytes of a round with as many bytes of its own, while it still receives.
Both ends read into memory of full size, as the weights and gradients of a round have to land somewhere.
With TLS a connection is two, one per direction, since two threads may not use one at the same time.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ps_lab.bench.turns import answer, read_configuration, take_turns

CHUNK_BYTES = 4 << 20  # per call
BUFFER_BYTES = 4 << 20  # asked of the kernel, which gives what it allows
CONNECT_LIMIT_S = 30.0
RETRY_S = 0.02
UP, DOWN = b"U", b"D"  # to the server, from it; said on a TLS connection with a number that both halves have
PAIR_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Between a worker and a server.

    Attributes:
        up: on which the worker sends.
        down: on which the server sends; the same one without TLS.
    """

    up: socket.socket
    down: socket.socket


def receive(connection: socket.socket, view: memoryview, *, start: int = 0) -> None:
    """Fills the view from `start` on.

    Raises:
        EOFError: the other end has closed.
    """
    while start < len(view):
        count = connection.recv_into(view[start : start + CHUNK_BYTES])
        if count == 0:
            raise EOFError
        start += count


def make_socket(address: str | Sequence[Any]) -> socket.socket:
    """A socket of the address's family, with buffers and without delays."""
    if isinstance(address, str):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if isinstance(address, str):  # of TCP the kernel sizes them as it goes, which is faster
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            made.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    return made


def place(address: str | Sequence[Any]) -> Any:
    """The address as `bind` and `connect` take it."""
    return address if isinstance(address, str) else (address[0], address[1])


def accept(listener: socket.socket, count: int, tls_dir: str | None) -> list[Connection]:
    """Waits for so many connections."""
    if tls_dir is None:
        plain = [listener.accept()[0] for _ in range(count)]
        return [Connection(up=connected, down=connected) for connected in plain]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(Path(tls_dir) / "tls.crt", Path(tls_dir) / "tls.key")
    halves: dict[bytes, dict[bytes, socket.socket]] = {}
    for _ in range(2 * count):
        half = context.wrap_socket(listener.accept()[0], server_side=True)
        said = half.recv(1 + PAIR_BYTES)
        halves.setdefault(said[1:], {})[said[:1]] = half
    return [Connection(up=pair[UP], down=pair[DOWN]) for pair in halves.values()]


def connect(address: str | Sequence[Any], tls_dir: str | None) -> Connection:
    """A connection to a server, which may not listen yet."""
    if tls_dir is None:
        plain = _connect(address)
        return Connection(up=plain, down=plain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(Path(tls_dir) / "ca.crt")
    number = secrets.token_bytes(PAIR_BYTES)
    halves = {}
    for way in (UP, DOWN):
        halves[way] = context.wrap_socket(_connect(address), server_hostname=str(address[0]))
        halves[way].sendall(way + number)
    return Connection(up=halves[UP], down=halves[DOWN])


def serve(configuration: Mapping[str, Any]) -> None:
    """Answers every round on every connection, until the other ends close."""
    address, share = configuration["address"], configuration["bytes"]
    weights = memoryview(bytearray(b"\1") * share)
    with make_socket(address) as listener:
        if not isinstance(address, str):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place(address))
        listener.listen(configuration["connections"])
        answer(ready=True)
        connections = accept(listener, configuration["connections"], configuration.get("tls_dir"))
    if isinstance(address, str) and not address.startswith("\0"):
        Path(address).unlink()

    def answer_one(connection: Connection) -> None:
        gradient = memoryview(bytearray(b"\1") * share)
        begun = threading.Semaphore(0)

        def send() -> None:
            with contextlib.suppress(OSError):
                while begun.acquire():
                    connection.down.sendall(weights)

        threading.Thread(target=send, daemon=True).start()
        with contextlib.suppress(EOFError, OSError):
            while count := connection.up.recv_into(gradient[:CHUNK_BYTES]):
                begun.release()
                receive(connection.up, gradient, start=count)

    threads = [threading.Thread(target=answer_one, args=(connection,)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def work(configuration: Mapping[str, Any]) -> None:
    """Sends and receives its share on every connection, each turn."""
    share = configuration["bytes"]
    tls_dir = configuration.get("tls_dir")
    connections = [connect(address, tls_dir) for address in configuration["addresses"]]
    gradients = [memoryview(bytearray(b"\1") * share) for _ in connections]
    weights = [memoryview(bytearray(b"\1") * share) for _ in connections]
    begun = [threading.Semaphore(0) for _ in connections]
    received = threading.Semaphore(0)

    def send(index: int) -> None:
        while begun[index].acquire():
            connections[index].up.sendall(gradients[index])

    def take(index: int) -> None:
        while True:
            receive(connections[index].down, weights[index])
            received.release()

    for index in range(len(connections)):
        for target in (send, take):
            threading.Thread(target=target, args=(index,), daemon=True).start()

    def turn() -> None:
        for semaphore in begun:
            semaphore.release()
        for _ in connections:
            received.acquire()

    take_turns(turn)


def _connect(address: str | Sequence[Any]) -> socket.socket:
    deadline_s = time.monotonic() + CONNECT_LIMIT_S
    while True:
        made = make_socket(address)
        try:
            made.connect(place(address))
        except OSError:
            made.close()
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(RETRY_S)
        else:
            return made


def main() -> None:
    """Serves or works, as told."""
    configuration = read_configuration()
    (serve if configuration["role"] == "server" else work)(configuration)


if __name__ == "__main__":
    main()
