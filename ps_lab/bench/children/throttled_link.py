"""A slow link before one server: forwards TCP connections with a bandwidth, shared by all, and a delay.

Each direction has a bandwidth of its own, as a network card has. What has been read and not yet delivered is
bounded by what such a link holds, so a sender that is too fast waits in its own `send`, as on a network.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Sequence

from ps_lab.bench.turns import answer, read_configuration

CHUNK_BYTES = 128 << 10  # per call: large enough for 2 GB/s with little work, 1 ms at 1 Gbit/s
BURST_S = 0.002  # a pause of the link's that is made up for: sleeps end late
LEAST_CHUNKS = 4  # under way, however slow the link is


class Bandwidth:
    """One direction of a link: when what is sent arrives. Thread-safe."""

    def __init__(self, *, bytes_per_s: float, delay_s: float) -> None:
        """Takes the rate, which may be infinite, and the time that each byte is under way."""
        self._bytes_per_s = bytes_per_s
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._free_s = 0.0  # the link has sent everything by then

    @property
    def held_bytes(self) -> float:
        """That are under way when the link is full; infinite where the rate is and there is a delay."""
        return self._bytes_per_s * (self._delay_s + BURST_S)

    def send(self, count: int, now_s: float) -> float:
        """So many bytes are sent at `now_s`, behind all before; returns when the last one arrives."""
        with self._lock:
            self._free_s = max(self._free_s, now_s - BURST_S) + count / self._bytes_per_s
            return max(self._free_s, now_s) + self._delay_s


class Direction:
    """Bytes of one connection, one way: a thread reads them, another one delivers them when they arrive."""

    def __init__(self, source: socket.socket, sink: socket.socket, bandwidth: Bandwidth) -> None:
        """Begins."""
        self._source, self._sink, self._bandwidth = source, sink, bandwidth
        chunks = min(bandwidth.held_bytes, 256 << 20) / CHUNK_BYTES
        self._under_way: queue.Queue[tuple[float, bytes]] = queue.Queue(LEAST_CHUNKS + int(chunks))
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._receive, self._deliver)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Waits until the stream has ended."""
        for thread in self._threads:
            thread.join()

    def _receive(self) -> None:
        chunk = b"-"
        while chunk:
            try:
                chunk = self._source.recv(CHUNK_BYTES)
            except OSError:
                chunk = b""
            self._under_way.put((self._bandwidth.send(len(chunk), time.monotonic()), chunk))

    def _deliver(self) -> None:
        broken = False
        while True:
            arrives_s, chunk = self._under_way.get()
            time.sleep(max(arrives_s - time.monotonic(), 0.0))
            if not chunk:
                break
            try:
                if not broken:
                    self._sink.sendall(chunk)
            except OSError:
                broken = True
                with contextlib.suppress(OSError):
                    self._source.shutdown(socket.SHUT_RD)  # whoever sends finds out
        with contextlib.suppress(OSError):
            self._sink.shutdown(socket.SHUT_WR)


class ThrottledLink:
    """A link between a server and its workers that passes a given number of bytes a second."""

    def __init__(self, *, bytes_per_s: float, delay_s: float) -> None:
        """Takes the rate and the delay of each direction."""
        self._there = Bandwidth(bytes_per_s=bytes_per_s, delay_s=delay_s)
        self._back = Bandwidth(bytes_per_s=bytes_per_s, delay_s=delay_s)

    def serve(self, listener: socket.socket, target: tuple[str, int]) -> None:
        """Forwards whoever connects, until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._forward, args=(connection, target), daemon=True).start()

    def _forward(self, near: socket.socket, target: tuple[str, int]) -> None:
        with near:
            try:
                far = socket.create_connection(target)
            except OSError:
                return  # as if the target had refused: the connection ends
            with far:
                for connected in (near, far):
                    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                directions = [Direction(near, far, self._there), Direction(far, near, self._back)]
                for direction in directions:
                    direction.join()


def listen(address: Sequence[object]) -> socket.socket:
    """A listener at [host, port].

    Raises:
        OSError: it cannot be.
    """
    host, port = address
    return socket.create_server((str(host), int(str(port))))


def main() -> None:
    """Forwards as told until it is killed."""
    configuration = read_configuration()
    link = ThrottledLink(
        bytes_per_s=configuration["bytes_per_s"] or float("inf"), delay_s=configuration["delay_s"]
    )
    for near, (host, port) in configuration["routes"]:
        listener = listen(near)
        threading.Thread(target=link.serve, args=(listener, (host, port)), daemon=True).start()
    answer(ready=True)
    threading.Event().wait()  # the bench ends it


if __name__ == "__main__":
    main()
