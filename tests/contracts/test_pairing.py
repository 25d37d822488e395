"""What `tcp` with TLS owes beyond the others: halves find each other, and strangers cost little."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ps_server.rpc import greeting
from ps_server.shard.shard import Shard
from ps_server.shard.transport import tls_pairing
from ps_server.shard.transport.socket_server import SocketServer
from ps_wire.access.certificates import TlsFolder
from ps_wire.errors import TlsRefused
from ps_wire.frames import frame as wire
from ps_wire.sockets.frame_socket import FrameSocket
from ps_wire.sockets.tls_socket import DOWN, MAGIC, PAIR_BYTES, UP, Half
from ps_worker.transport.connection import refusal
from tests.until import until

from .bench import LIMIT_S, worker_certificates


class Door:
    """A data port with TLS, and strangers at it."""

    def __init__(self, certificates: Path) -> None:
        self.shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
        tls = TlsFolder(certificates / "server", serves=True, complain=print)
        self.server = SocketServer(self.shard, host="127.0.0.1", port=0, tls=tls)
        self.server.begin()
        self.server.open()
        (port,) = [offer.address for offer in self.server.offers if offer.name == "tcp"]
        self.address = ("127.0.0.1", int(port))
        self._connecting = worker_certificates(certificates / "worker").identity().connecting
        self._open: list[socket.socket] = []

    def plain(self) -> socket.socket:
        self._open.append(socket.create_connection(self.address, LIMIT_S))
        return self._open[-1]

    def half(self, direction: bytes, pair: bytes) -> ssl.SSLSocket:
        made = self._connecting.wrap_socket(self.plain(), server_hostname="127.0.0.1")
        self._open.append(made)
        made.sendall(MAGIC + direction + pair)
        return made

    @property
    def strangers(self) -> int:
        return len(self.server.strangers["tcp"])

    def leave(self) -> None:
        for end in self._open:
            end.close()

    def close(self) -> None:
        self.leave()
        self.server.close()


@pytest.fixture
def door(certificates: Path) -> Iterator[Door]:
    made = Door(certificates)
    yield made
    made.close()


def is_ended(end: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        return end.recv(1) == b""
    return True


def answered(up: ssl.SSLSocket, down: ssl.SSLSocket) -> bool:
    """Whether the two are one connection: what is said on one is answered on the other. Closes them."""
    with up, down:
        up.sendall(bytes(wire.HEADER_BYTES))
        return wire.decode(down.recv(4096)).kind is wire.Kind.REFUSE


def test_halves_find_each_other_in_any_order_and_by_their_number_alone(door: Door):
    one, two = bytes(PAIR_BYTES), bytes([1]) * PAIR_BYTES
    first_down, second_up = door.half(DOWN, one), door.half(UP, two)
    second_down, first_up = door.half(DOWN, two), door.half(UP, one)
    assert answered(first_up, first_down)
    assert answered(second_up, second_down)
    until(lambda: door.strangers == 0)


def test_a_half_that_is_there_already_is_refused_and_the_first_one_stays(door: Door):
    pair = bytes(PAIR_BYTES)
    up = door.half(UP, pair)
    until(lambda: len(door.server._pairing._waiting) == 1)
    assert is_ended(door.half(UP, pair))
    assert answered(up, door.half(DOWN, pair))


def test_a_half_without_its_other_half_is_ended_in_time_and_counted(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
):
    """The limit is for the handshake, too: where that takes longer, it is seen with the next limit."""
    waited: list[bool] = []
    join = tls_pairing.TlsPairing._join

    def joins(pairing: tls_pairing.TlsPairing, half: Half, until_s: float) -> bool:
        waited.append(time.monotonic() < until_s)
        return join(pairing, half, until_s)

    monkeypatch.setattr(tls_pairing.TlsPairing, "_join", joins)
    for limit_s in (0.3, 3.0, 30.0):
        monkeypatch.setattr(tls_pairing, "HELLO_LIMIT_S", limit_s)
        waited.clear()
        door = Door(certificates)
        silent = door.plain()
        half: ssl.SSLSocket | None = None
        with contextlib.suppress(OSError):
            half = door.half(UP, bytes(PAIR_BYTES))
        assert half is None or is_ended(half)
        assert is_ended(silent)
        until(lambda door=door: door.strangers == 0)
        door.close()
        if waited == [True]:
            break
    assert waited == [True]
    assert door.shard.refused_frames == 2
    assert not door.server._pairing._waiting


def test_halves_are_strangers_and_the_oldest_goes_for_a_newcomer(door: Door, monkeypatch: pytest.MonkeyPatch):
    """Also one that waits for its other half."""
    monkeypatch.setattr(greeting, "MAX_STRANGERS", 3)
    half, silent, other = (
        door.half(UP, bytes(PAIR_BYTES)),
        door.plain(),
        door.half(UP, bytes([1]) * PAIR_BYTES),
    )
    until(lambda: door.strangers == 3 and len(door.server._pairing._waiting) == 2)
    newcomer = door.plain()
    assert is_ended(half)
    until(lambda: len(door.server._pairing._waiting) == 1)
    assert door.strangers == 3
    silent.close()
    newcomer.close()
    until(lambda: door.strangers == 1)
    assert answered(other, door.half(DOWN, bytes([1]) * PAIR_BYTES))


def test_who_speaks_frames_without_tls_is_told_so_in_frames(door: Door):
    client = FrameSocket(door.plain())
    client.send([wire.Frame(kind=wire.Kind.HELLO, meta=bytes(20))])
    frame = client.receive()
    assert frame is not None
    error = refusal(frame)
    assert isinstance(error, TlsRefused)
    assert "--tls-dir" in error.message
    assert client.receive() is None
    client.close()


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(300), b"\x16\x03\x01\x02\x00" + bytes(600)]
)
def test_who_speaks_something_else_gets_nothing_and_is_counted(door: Door, said: bytes):
    stranger = door.plain()
    with contextlib.suppress(OSError):
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
    while not is_ended(stranger):  # an alert of TLS may come
        pass
    until(lambda: door.strangers == 0)
    assert door.shard.refused_frames == 1


def test_who_has_no_certificate_gets_nothing(door: Door):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    stranger = context.wrap_socket(door.plain())
    with contextlib.suppress(OSError):
        stranger.sendall(MAGIC + UP + bytes(PAIR_BYTES))
    assert is_ended(stranger)
    until(lambda: door.strangers == 0)
    assert not door.server._pairing._waiting
    stranger.close()


def test_a_server_that_stops_waits_for_no_half(certificates: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tls_pairing, "HELLO_LIMIT_S", LIMIT_S)
    door = Door(certificates)
    door.plain()
    half = door.half(UP, bytes(PAIR_BYTES))
    until(lambda: len(door.server._pairing._waiting) == 1)
    threads = [thread for thread in threading.enumerate() if thread in door.server._pairing._threads]
    assert [thread.name for thread in threads] == ["ps-tls"] * 2
    began_s = time.monotonic()
    door.server.close(limit_s=LIMIT_S)
    assert time.monotonic() - began_s < LIMIT_S / 2
    assert is_ended(half)
    assert not any(thread.is_alive() for thread in threads)
    assert door.strangers == 0
    door.leave()
