"""A slow link: what it lets through and when, and what is refused."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from ps_lab.bench import link as links
from ps_lab.bench.children.throttled_link import BURST_S, CHUNK_BYTES, LEAST_CHUNKS, Bandwidth, ThrottledLink
from ps_lab.bench.link import parse_link
from ps_lab.cluster.network import Link
from ps_lab.cluster.ports import free_ports
from ps_wire.errors import UsageError
from tests.until import LIMIT_S


@pytest.fixture(name="target")
def _target() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        yield listener


def through(link: ThrottledLink, target: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection that leads through the link."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=link.serve, args=(listener, target.getsockname()), daemon=True).start()
    near = socket.create_connection(listener.getsockname(), timeout=LIMIT_S)
    far, _ = target.accept()
    far.settimeout(LIMIT_S)
    listener.close()
    return near, far


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 20), b""))


def test_what_is_sent_arrives_at_the_rate_behind_what_was_sent_before() -> None:
    line = Bandwidth(bytes_per_s=1000.0, delay_s=0.0)
    assert line.send(100, 10.0) == pytest.approx(10.1 - BURST_S)
    assert line.send(100, 10.0) == pytest.approx(10.2 - BURST_S)  # it waits for the first
    assert line.send(100, 10.15) == pytest.approx(10.3 - BURST_S)


def test_an_idle_link_saves_no_more_than_a_burst() -> None:
    line = Bandwidth(bytes_per_s=1000.0, delay_s=0.0)
    line.send(100, 10.0)
    assert line.send(100, 60.0) == pytest.approx(60.1 - BURST_S)


def test_nothing_arrives_before_its_delay() -> None:
    line = Bandwidth(bytes_per_s=math.inf, delay_s=0.5)
    assert line.send(1 << 30, 10.0) == 10.5
    assert Bandwidth(bytes_per_s=1e12, delay_s=0.5).send(1, 10.0) == 10.5


def test_bytes_pass_unchanged_both_ways_and_so_does_the_end(target: socket.socket) -> None:
    near, far = through(ThrottledLink(bytes_per_s=math.inf, delay_s=0.0), target)
    data = bytes(range(256)) * 4096
    with closing(near), closing(far):
        for one, other in ((near, far), (far, near)):
            sender = threading.Thread(target=one.sendall, args=(data,))
            sender.start()
            received = bytearray()
            while len(received) < len(data):
                received += other.recv(1 << 20)
            sender.join()
            assert received == data
        near.shutdown(socket.SHUT_WR)
        assert read_all(far) == b""
        far.shutdown(socket.SHUT_WR)
        assert read_all(near) == b""


def test_connections_share_the_rate(target: socket.socket) -> None:
    link = ThrottledLink(bytes_per_s=8e6, delay_s=0.02)
    pairs = [through(link, target) for _ in range(2)]
    begin_s = time.monotonic()
    for near, _ in pairs:
        near.sendall(b"x" * 400_000)
        near.shutdown(socket.SHUT_WR)
    assert [len(read_all(far)) for _, far in pairs] == [400_000, 400_000]
    assert time.monotonic() - begin_s >= 800_000 / 8e6 + 0.02 - BURST_S
    for pair in pairs:
        for end in pair:
            end.close()


def test_who_sends_more_than_the_link_holds_waits(target: socket.socket) -> None:
    near, far = through(ThrottledLink(bytes_per_s=1e9, delay_s=0.0), target)
    holds = int((LEAST_CHUNKS + 1e9 * BURST_S / CHUNK_BYTES + 2) * CHUNK_BYTES)
    in_systems_buffers = 2 * 16 << 20  # of two connections, by the system's limits
    with closing(near), closing(far):
        near.settimeout(0.5)
        with pytest.raises(TimeoutError):
            near.sendall(b"x" * (holds + in_systems_buffers))


def test_a_target_that_is_gone_ends_the_connection() -> None:
    link = ThrottledLink(bytes_per_s=math.inf, delay_s=0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = ("127.0.0.1", free_ports(1)[0])
        threading.Thread(target=link.serve, args=(listener, address), daemon=True).start()
        with socket.create_connection(listener.getsockname(), timeout=LIMIT_S) as near:
            assert near.recv(1) == b""


def test_a_peer_that_vanishes_is_noticed_by_the_other(target: socket.socket) -> None:
    near, far = through(ThrottledLink(bytes_per_s=math.inf, delay_s=0.0), target)
    with closing(near):
        far.close()
        assert near.recv(1) == b""


def test_a_link_is_asked_for_with_either_option() -> None:
    assert parse_link(None, None, "shm") is None
    assert parse_link(2.5, None, "tcp") == Link(gbps=2.5, ms=0.0)
    assert parse_link(None, 5.0, "tcp") == Link(gbps=None, ms=5.0)
    assert Link(gbps=2.5, ms=5.0).text == "2.5 Gbit/s, 5 ms"


@pytest.mark.parametrize(
    ("gbps", "ms", "carrier", "said"),
    [
        (0.0, None, "tcp", "--link-gbps"),
        (-1.0, None, "tcp", "--link-gbps"),
        (math.inf, None, "tcp", "--link-gbps"),
        (math.nan, None, "tcp", "--link-gbps"),
        (1.0, -1.0, "tcp", "--link-ms"),
        (1.0, math.nan, "tcp", "--link-ms"),
        (1.0, None, "shm", "add --carrier tcp, not shm"),
        (None, 1.0, "auto", "add --carrier tcp, not auto"),
    ],
)
def test_a_link_that_makes_no_sense_is_refused(
    gbps: float | None, ms: float | None, carrier: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        parse_link(gbps, ms, carrier)


def test_each_servers_ports_keep_their_numbers_behind_its_link() -> None:
    addresses = ("127.0.0.1:20001", "127.0.0.1:20002")
    assert links.through(addresses) == ("127.0.0.2:20001", "127.0.0.2:20002")
    first, second = links.plans(Link(gbps=1.0, ms=2.0), addresses, (30001, 30002))
    assert first.configuration == {
        "bytes_per_s": 125e6,
        "delay_s": 0.002,
        "routes": [(("127.0.0.2", port), ("127.0.0.1", port)) for port in (20001, 30001)],
    }
    assert second.name == "link 1"
