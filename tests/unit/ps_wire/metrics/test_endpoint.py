"""The port of metrics: who is answered, who is not, and what a stranger costs."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ps_lab.cluster.certificate_authority import make_certificates
from ps_wire.access import token as tokens
from ps_wire.access.access import OPEN, Access, read
from ps_wire.errors import Unavailable
from ps_wire.metrics import endpoint as endpoints
from ps_wire.metrics.endpoint import MAX_REQUEST_BYTES, MetricsEndpoint
from tests.until import LIMIT_S, until

LOG = logging.getLogger("test")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is slow is answered: the machine may be busy."""
    monkeypatch.setattr(endpoints, "REQUEST_LIMIT_S", LIMIT_S)


@contextlib.contextmanager
def listening(access: Access = OPEN, text: bytes = b"a 1\n") -> Iterator[tuple[MetricsEndpoint, list[int]]]:
    refused: list[int] = []
    it = MetricsEndpoint(
        "127.0.0.1", 0, lambda: text, access=access, log=LOG, refused=lambda: refused.append(1)
    )
    it.begin()
    try:
        yield it, refused
    finally:
        it.close()


def get(
    it: MetricsEndpoint, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", it.port, timeout=LIMIT_S)
    try:
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def test_a_scrape_gets_the_text():
    with listening() as (it, refused):
        assert get(it) == (200, b"a 1\n")
        assert get(it, "/metrics?x=1") == (200, b"a 1\n")
        assert not refused


def test_other_paths_and_methods_get_nothing():
    with listening() as (it, refused):
        assert get(it, "/")[0] == 404
        assert get(it, method="POST")[0] == 405
        assert len(refused) == 2


def test_with_a_token_a_scrape_must_carry_the_service_s(tmp_path: Path):
    """That of a job does not do: it would see other jobs."""
    secret = "x" * 32
    path = tmp_path / "token"
    path.write_text(secret)
    access = read(token_file=path, tls_dir=None, complain=pytest.fail)
    with listening(access) as (it, refused):
        assert get(it)[0] == 401
        assert get(it, Authorization=f"Bearer {secret[1:]}y")[0] == 401
        of_job = tokens.of_job(secret, "j")
        assert get(it, **{"Authorization": f"Bearer {of_job}", "ps-job": "j"})[0] == 401
        assert len(refused) == 3
        assert get(it, Authorization=f"Bearer {secret}") == (200, b"a 1\n")
        assert get(it, authorization=f"Bearer {secret}")[0] == 200


def test_with_certificates_a_scrape_shows_one(tmp_path: Path):
    """And who speaks no TLS, or has none, is not answered."""
    make_certificates(tmp_path, hosts=(), days=1, force=False)
    access = read(token_file=None, tls_dir=tmp_path / "server", complain=pytest.fail, serves=True)
    mine = read(token_file=None, tls_dir=tmp_path / "worker", complain=pytest.fail)
    stranger = ssl.create_default_context(cafile=str(tmp_path / "worker" / "ca.crt"))
    with listening(access) as (it, refused):
        for context, answered in ((mine.tls.identity().connecting, True), (stranger, False)):
            connection = http.client.HTTPSConnection("localhost", it.port, context=context, timeout=LIMIT_S)
            try:
                connection.request("GET", "/metrics")
                reply = connection.getresponse()
                assert (answered, reply.read()) == (True, b"a 1\n")
            except (OSError, http.client.HTTPException):
                assert not answered
            finally:
                connection.close()
        with pytest.raises((OSError, http.client.HTTPException)):
            get(it)
        until(lambda: len(refused) == 2, "both are counted")


def test_who_says_nothing_goes_and_others_are_answered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoints, "REQUEST_LIMIT_S", 0.05)
    with listening() as (it, refused), socket.create_connection(("127.0.0.1", it.port)) as silent:
        silent.settimeout(LIMIT_S)
        assert b"400" in silent.recv(100)
        monkeypatch.setattr(endpoints, "REQUEST_LIMIT_S", LIMIT_S)
        assert get(it)[0] == 200
        assert len(refused) == 1


class Endless:
    """A peer that never ends its request."""

    def __init__(self) -> None:
        self.sent = 0

    def settimeout(self, _limit_s: float) -> None:
        """It answers at once."""

    def recv(self, most: int) -> bytes:
        self.sent += most
        assert self.sent < 4 * MAX_REQUEST_BYTES, "it is read for ever"
        return b"y" * most


def test_a_request_without_an_end_is_cut_off():
    peer = Endless()
    assert endpoints._read(peer, time.monotonic() + LIMIT_S) is None
    assert peer.sent >= MAX_REQUEST_BYTES


def test_a_bug_while_the_text_is_made_ends_one_answer_and_not_the_thread(caplog: pytest.LogCaptureFixture):
    bugs = [ValueError("a bug")]

    def render() -> bytes:
        if bugs:
            raise bugs.pop()
        return b"b 2\n"

    it = MetricsEndpoint("127.0.0.1", 0, render, access=OPEN, log=LOG)
    it.begin()
    try:
        with pytest.raises((http.client.HTTPException, OSError)):
            get(it)
        assert get(it) == (200, b"b 2\n")
    finally:
        it.close()
    assert "a bug" in caplog.text


def test_a_process_that_is_too_busy_says_so():
    def render() -> bytes:
        raise TimeoutError

    it = MetricsEndpoint("127.0.0.1", 0, render, access=OPEN, log=LOG)
    it.begin()
    try:
        assert get(it)[0] == 503
    finally:
        it.close()


def test_a_port_that_is_taken_is_named():
    with listening() as (it, _), pytest.raises(Unavailable, match=rf"127.0.0.1:{it.port}.*--metrics-port"):
        MetricsEndpoint("127.0.0.1", it.port, bytes, access=OPEN, log=LOG)


def test_without_a_port_nothing_listens():
    it = MetricsEndpoint("127.0.0.1", None, bytes, access=OPEN, log=LOG)
    it.begin()
    it.close()
    assert it.port is None


def test_close_ends_the_thread_while_it_waits():
    with listening() as (it, _):
        until(it._thread.is_alive, "it listens")
    assert not it._thread.is_alive()


def test_a_forked_child_does_not_keep_the_port():
    """Such as a process of a DataLoader, which may outlive a worker that was killed."""
    with listening() as (it, _):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write_end, b"closed" if it._listener.fileno() < 0 else b"open")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read_end, 100) == b"closed"
        os.close(read_end)
        os.close(write_end)
        assert get(it)[0] == 200
