"""What sockets allow: as many connections and bytes as a round has, both ways at once, and nothing else.

A server answers a worker's first bytes of a round with as many bytes of its own, while it still receives.
Both ends read into memory of full size, as the weights and gradients of a round have to land somewhere.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ps_lab.bench.turns import answer, read_configuration, take_turns

CHUNK_BYTES = 4 << 20  # per call
BUFFER_BYTES = 4 << 20  # asked of the kernel, which gives what it allows
CONNECT_LIMIT_S = 30.0
RETRY_S = 0.02


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
        connections = [listener.accept()[0] for _ in range(configuration["connections"])]
    if isinstance(address, str) and not address.startswith("\0"):
        Path(address).unlink()

    def answer_one(connection: socket.socket) -> None:
        gradient = memoryview(bytearray(b"\1") * share)
        begun = threading.Semaphore(0)

        def send() -> None:
            with contextlib.suppress(OSError):
                while begun.acquire():
                    connection.sendall(weights)

        threading.Thread(target=send, daemon=True).start()
        with contextlib.suppress(EOFError, OSError):
            while count := connection.recv_into(gradient[:CHUNK_BYTES]):
                begun.release()
                receive(connection, gradient, start=count)

    threads = [threading.Thread(target=answer_one, args=(connection,)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def work(configuration: Mapping[str, Any]) -> None:
    """Sends and receives its share on every connection, each turn."""
    share = configuration["bytes"]
    connections = [_connect(address) for address in configuration["addresses"]]
    gradients = [memoryview(bytearray(b"\1") * share) for _ in connections]
    weights = [memoryview(bytearray(b"\1") * share) for _ in connections]
    begun = [threading.Semaphore(0) for _ in connections]
    received = threading.Semaphore(0)

    def send(index: int) -> None:
        while begun[index].acquire():
            connections[index].sendall(gradients[index])

    def take(index: int) -> None:
        while True:
            receive(connections[index], weights[index])
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
