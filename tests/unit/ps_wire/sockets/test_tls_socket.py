"""Two TLS connections as one socket: bytes arrive whole both ways, and both halves die together."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from ps_lab.cluster.certificate_authority import make_certificates
from ps_wire.access.certificates import TlsFolder
from ps_wire.errors import ConnectionLost, FrameMalformed
from ps_wire.sockets import tls_socket
from ps_wire.sockets.frame_socket import FrameSocket
from ps_wire.sockets.tls_socket import DOWN, MAGIC, UP, TlsSocket
from tests.silence import fall_silent, linux
from tests.until import LIMIT_S

BIG = 1 << 20


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[TlsFolder, TlsFolder]:
    """Of a server and of a worker."""
    path = tmp_path_factory.mktemp("certificates")
    make_certificates(path)
    return (
        TlsFolder(path / "server", serves=True, complain=print),
        TlsFolder(path / "worker", serves=False, complain=print),
    )


class Listener:
    """Accepts connections, and what each of them says it is."""

    def __init__(self, tls: TlsFolder) -> None:
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def accept(self, limit_s: float = LIMIT_S) -> tls_socket.Half:
        plain, _ = self._socket.accept()
        connection = tls_socket.wrap(plain, self._tls.identity().accepting)
        try:
            return tls_socket.accept(connection, time.monotonic() + limit_s)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener(folders: tuple[TlsFolder, TlsFolder]) -> Iterator[Listener]:
    made = Listener(folders[0])
    yield made
    made.close()


def in_thread(function: object, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def ends(folders: tuple[TlsFolder, TlsFolder], listener: Listener) -> Iterator[tuple[TlsSocket, TlsSocket]]:
    """The connecting end and the accepting one."""
    made: list[TlsSocket] = []
    connecting = folders[1].identity().connecting
    thread = in_thread(
        lambda: made.append(tls_socket.connect("127.0.0.1", listener.port, connecting, LIMIT_S))
    )
    halves = [listener.accept(), listener.accept()]
    thread.join(LIMIT_S)
    assert [half.up for half in halves] == [True, False]
    assert halves[0].pair == halves[1].pair
    client, server = made[0], TlsSocket(halves[1].connection, halves[0].connection)
    for end in (client, server):
        end.setblocking(True)
    yield client, server
    client.close()
    server.close()


def received(end: TlsSocket, count: int) -> bytes:
    data = bytearray(count)
    assert end.recv_into(data, 0, socket.MSG_WAITALL) == count
    return bytes(data)


def test_bytes_arrive_whole_and_in_order_both_ways_at_once(ends: tuple[TlsSocket, TlsSocket]):
    """Small and large buffers in one call, on four threads; each direction has one that sends."""
    sizes = [64, 0, 3, 16 << 10, (16 << 10) + 1, BIG, 1, 15_000, 15_000, 64]
    sent = {end: [secrets.token_bytes(size) for size in sizes] for end in ends}
    counts: dict[TlsSocket, int] = {}

    def send(end: TlsSocket) -> None:
        counts[end] = end.sendmsg([memoryview(part) for part in sent[end]])

    threads = [in_thread(send, end) for end in ends]
    got: dict[TlsSocket, bytes] = {}
    threads.append(in_thread(lambda: got.update({ends[0]: received(ends[0], sum(sizes))})))
    got[ends[1]] = received(ends[1], sum(sizes))
    for thread in threads:
        thread.join(LIMIT_S)
    assert got == {ends[0]: b"".join(sent[ends[1]]), ends[1]: b"".join(sent[ends[0]])}
    assert counts == dict.fromkeys(ends, sum(sizes))


def test_a_header_and_its_payload_leave_in_two_sends_and_small_frames_in_one(
    ends: tuple[TlsSocket, TlsSocket],
):
    """Each send is at least a record of TLS, and a call into it."""
    client, server = ends

    class Counting:
        def __init__(self, connection: ssl.SSLSocket) -> None:
            self.sizes: list[int] = []
            self._connection = connection

        def sendall(self, data: bytes) -> None:
            self.sizes.append(len(data))
            self._connection.sendall(data)

    counting = Counting(client._sending)
    client._sending, plain = counting, client._sending
    reading = in_thread(received, server, BIG + 64 + 40 * 64)
    client.sendmsg([bytes(64), bytes(BIG)])
    client.sendmsg([bytes(64)] * 40)
    reading.join(LIMIT_S)
    client._sending = plain
    assert counting.sizes == [64, BIG, 40 * 64]


def test_who_ends_what_it_sends_can_still_receive(ends: tuple[TlsSocket, TlsSocket]):
    client, server = ends
    client.sendmsg([b"last"])
    client.shutdown(socket.SHUT_WR)
    assert received(server, 4) == b"last"
    assert server.recv_into(bytearray(9)) == 0
    server.sendmsg([b"answer"])
    assert received(client, 6) == b"answer"


def test_where_receiving_breaks_sending_is_cut(ends: tuple[TlsSocket, TlsSocket]):
    """Bytes that somebody has put in between; whoever sends finds out at once."""
    client, server = ends
    socket.socket.send(client._sending, bytes(64))
    with pytest.raises(ssl.SSLError):
        server.recv_into(bytearray(9))
    with pytest.raises(OSError):  # noqa: PT011 - whichever the system says
        server.sendmsg([bytes(9)])


def test_where_sending_breaks_receiving_is_cut(ends: tuple[TlsSocket, TlsSocket]):
    client, server = ends
    counts: list[int] = []
    waiting = in_thread(lambda: counts.append(server.recv_into(bytearray(9))))
    client._receiving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client._receiving.close()
    with pytest.raises(OSError):  # noqa: PT011 - whichever the system says
        server.sendmsg([bytes(BIG)] * 64)
    waiting.join(LIMIT_S)
    assert counts == [0]


def test_where_the_half_that_receives_is_given_up_sending_is_cut(
    ends: tuple[TlsSocket, TlsSocket], monkeypatch: pytest.MonkeyPatch
):
    """ETIMEDOUT is no limit of ours, though Python raises TimeoutError for both."""
    client, _ = ends

    def gone(*_: object) -> int:
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    monkeypatch.setattr(ssl.SSLSocket, "recv_into", gone)
    with pytest.raises(TimeoutError, match="Connection timed out"):
        client.recv_into(bytearray(9))
    with pytest.raises(OSError):  # noqa: PT011 - whichever the system says
        client.sendmsg([bytes(9)])


@linux
def test_a_half_whose_packets_vanish_ends_the_stream(ends: tuple[TlsSocket, TlsSocket]):
    """Python 3.11 takes ETIMEDOUT below TLS for the end of the stream; later ones raise it."""
    client, _ = ends
    ours = FrameSocket(client.as_socket())
    fall_silent(client._receiving)
    with contextlib.suppress(ConnectionLost):
        assert ours.receive() is None


def test_a_cut_returns_who_receives(ends: tuple[TlsSocket, TlsSocket]):
    _, server = ends
    counts: list[int] = []
    waiting = in_thread(lambda: counts.append(server.recv_into(bytearray(9))))
    server.shutdown(socket.SHUT_RDWR)
    waiting.join(LIMIT_S)
    assert counts == [0]


def test_waiting_for_bytes_has_a_limit(ends: tuple[TlsSocket, TlsSocket]):
    ends[0].settimeout(0.01)
    with pytest.raises(TimeoutError) as over:
        ends[0].recv_into(bytearray(1))
    assert tls_socket.ran_out(over.value)
    ends[1].sendmsg([b"here still"])
    ends[0].settimeout(LIMIT_S)
    assert received(ends[0], 10) == b"here still"


@pytest.mark.parametrize(
    ("preface", "error"),
    [
        (MAGIC + UP + bytes(15), ConnectionLost),
        (b"", ConnectionLost),
        (MAGIC + b"X" + bytes(16), FrameMalformed),
        (b"PSv1" + DOWN + bytes(16), FrameMalformed),
    ],
)
def test_who_does_not_say_which_half_it_is_gets_nothing(
    folders: tuple[TlsFolder, TlsFolder], listener: Listener, preface: bytes, error: type[Exception]
):
    def connect() -> None:
        with (
            socket.create_connection(("127.0.0.1", listener.port), LIMIT_S) as plain,
            folders[1].identity().connecting.wrap_socket(plain, server_hostname="127.0.0.1") as shaken,
        ):
            shaken.sendall(preface)

    thread = in_thread(connect)
    with pytest.raises(error):
        listener.accept()
    thread.join(LIMIT_S)


def test_a_handshake_has_a_limit(listener: Listener):
    with socket.create_connection(("127.0.0.1", listener.port)), pytest.raises(TimeoutError):
        listener.accept(limit_s=0.01)


@pytest.mark.parametrize("host", ["ps-server.example", "127.0.0.2"])
def test_a_server_of_another_name_is_not_connected_to(
    folders: tuple[TlsFolder, TlsFolder], listener: Listener, host: str, monkeypatch: pytest.MonkeyPatch
):
    """Its certificate is good, for other names."""
    real = socket.create_connection
    monkeypatch.setattr(
        "ps_wire.sockets.tls_socket.socket.create_connection",
        lambda address, limit_s: real(("127.0.0.1", address[1]), limit_s),
    )

    def refused() -> None:
        with pytest.raises(ssl.SSLError):
            listener.accept()

    thread = in_thread(refused)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        tls_socket.connect(host, listener.port, folders[1].identity().connecting, LIMIT_S)
    thread.join(LIMIT_S)
