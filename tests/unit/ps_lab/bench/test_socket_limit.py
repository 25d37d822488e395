"""The limit of sockets moves all bytes both ways, with and without TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from ps_lab.bench.children import socket_limit
from ps_lab.bench.children.socket_limit import Connection

WITHOUT_OPENSSL = shutil.which("openssl") is None


def connected(tls_dir: str | None, count: int = 2) -> tuple[list[Connection], list[Connection]]:
    """The workers' ends and the server's, which are accepted in whichever order they come."""
    with socket_limit.make_socket(("127.0.0.1", 0)) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(2 * count)
        accepted: list[Connection] = []
        server = threading.Thread(
            target=lambda: accepted.extend(socket_limit.accept(listener, count, tls_dir))
        )
        server.start()
        workers = [socket_limit.connect(listener.getsockname(), tls_dir) for _ in range(count)]
        server.join()
    return workers, accepted


def close(connections: list[Connection]) -> None:
    for connection in connections:
        connection.up.close()
        connection.down.close()


def check_exchange(workers: list[Connection], servers: list[Connection]) -> None:
    """Each worker's bytes come out at one server end, whose answer comes back to that worker."""
    for number, worker in enumerate(workers):
        worker.up.sendall(bytes([number]) * 5)
    for server in servers:
        heard = memoryview(bytearray(5))
        socket_limit.receive(server.up, heard)
        server.down.sendall(bytes(heard))
    for number, worker in enumerate(workers):
        answer = memoryview(bytearray(5))
        socket_limit.receive(worker.down, answer)
        assert answer == bytes([number]) * 5


def test_without_tls_a_connection_is_one_socket() -> None:
    workers, servers = connected(None)
    assert all(end.up is end.down for end in workers + servers)
    check_exchange(workers, servers)
    close(workers + servers)


@pytest.mark.skipif(WITHOUT_OPENSSL, reason="no openssl here, to make a certificate")
def test_with_tls_each_direction_has_a_connection_and_halves_find_each_other(tmp_path: Path) -> None:
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"),
            *("-keyout", str(tmp_path / "tls.key"), "-out", str(tmp_path / "tls.crt")),
        ],
        check=True,
        capture_output=True,
    )
    shutil.copy(tmp_path / "tls.crt", tmp_path / "ca.crt")
    workers, servers = connected(str(tmp_path))
    assert all(isinstance(end.up, ssl.SSLSocket) and end.up is not end.down for end in workers + servers)
    check_exchange(workers, servers)
    close(workers + servers)
