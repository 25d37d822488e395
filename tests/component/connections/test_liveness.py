"""Who hears nothing from a shard asks its process; who waits for other workers leaves it alone."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_wire.errors import PsError, ServerNotReady, ServerUnreachable, TlsRefused, TokenRefused
from ps_worker.transport import liveness
from ps_worker.transport.liveness import ANSWER_LIMIT_S, SILENT_S, Liveness, is_silent
from tests.component.service import Cluster, run_workers
from tests.inside import link_of
from tests.until import LIMIT_S


class Shard:
    """Answers, or does not, by a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.answers: Callable[[], None] = lambda: None
        self.asked = 0
        self.silent = True

    def ask(self, limit_s: float) -> None:
        assert limit_s == ANSWER_LIMIT_S
        self.asked += 1
        self.now_s += 1.0
        self.answers()

    def hang(self) -> None:
        self.now_s += ANSWER_LIMIT_S
        raise ServerUnreachable("nobody")


@pytest.fixture
def shard() -> Shard:
    return Shard()


@pytest.fixture
def watched(shard: Shard) -> Liveness:
    return Liveness(shard.ask, lambda: shard.silent, lambda: shard.now_s)


def test_a_shard_is_asked_when_nothing_has_come_for_a_while(shard: Shard, watched: Liveness):
    assert watched.due_s == SILENT_S
    shard.now_s += SILENT_S - 1
    assert watched.due_s == 1
    watched.hear()
    assert watched.due_s == SILENT_S
    shard.now_s += 2 * SILENT_S
    assert watched.due_s == 0
    assert not shard.asked


def test_a_shard_that_answers_does_not_hang_and_is_left_alone_again(shard: Shard, watched: Liveness):
    shard.now_s += SILENT_S
    assert not watched.hangs()
    assert (shard.asked, watched.due_s) == (1, SILENT_S)


def test_a_shard_that_does_not_answer_hangs(shard: Shard, watched: Liveness):
    shard.answers = shard.hang
    shard.now_s += SILENT_S
    assert watched.hangs()
    assert watched.due_s == SILENT_S


def test_a_frame_that_comes_meanwhile_is_an_answer(shard: Shard, watched: Liveness):
    """The control plane may be slower than the data connection."""

    def late() -> None:
        watched.hear()
        shard.hang()

    shard.answers = late
    shard.now_s += SILENT_S
    assert not watched.hangs()


@pytest.mark.parametrize("error", [TokenRefused("no"), TlsRefused("expired"), ServerNotReady("it stops")])
def test_a_refusal_is_an_answer(shard: Shard, watched: Liveness, error: PsError):
    def refuse() -> None:
        raise error

    shard.answers = refuse
    assert not watched.hangs()
    assert watched.due_s == SILENT_S


def test_where_something_says_why_nobody_answers_it_does_not_hang(shard: Shard, watched: Liveness):
    """The data connection, which lives or ends by itself, is left alone."""
    shard.answers = shard.hang
    shard.silent = False
    assert not watched.hangs()
    assert watched.due_s == SILENT_S


def test_a_connection_that_is_taken_or_not_answered_is_silence_and_what_fails_is_none(
    monkeypatch: pytest.MonkeyPatch,
):
    """A kernel takes connections for a process that hangs; a port that refuses has nobody who could."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert is_silent(address)
    assert not is_silent(address)

    def failing(error: OSError) -> Callable[..., None]:
        def fail(*_: object) -> None:
            raise error

        return fail

    for error, silent in (
        (OSError(errno.EADDRNOTAVAIL, "no port is left"), False),
        (OSError(errno.EMFILE, "no descriptor is left"), False),
        (TimeoutError(), True),
    ):
        monkeypatch.setattr(socket, "create_connection", failing(error))
        assert is_silent(address) is silent


@pytest.mark.parametrize("carrier", ["shm", "tcp", "grpc"])
def test_a_shard_that_waits_for_another_worker_is_not_taken_for_hung(
    one_shard: Cluster, carrier: str, monkeypatch: pytest.MonkeyPatch
):
    """However long: it is asked again and again, answers, and the connection stays."""
    monkeypatch.setattr(liveness, "SILENT_S", 0.05)
    asked = threading.Semaphore(0)
    hangs = Liveness.hangs

    def counted(self: Liveness) -> bool:
        found = hangs(self)
        asked.release()
        return found

    monkeypatch.setattr(Liveness, "hangs", counted)

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(30)}, optimizer=ps.SGD(lr=1.0))
        (connection,) = link_of(worker).presence.connections
        table.push({"w": torch.ones(30)}).result(LIMIT_S) if not worker.rank else None
        before = connection._call
        if worker.rank:
            for _ in range(20):
                assert asked.acquire(timeout=LIMIT_S)
            table.push({"w": torch.ones(30)})
        pulled = table.pull()
        assert pulled.result(LIMIT_S).version == 1
        assert connection._call is before

    run_workers(one_shard, body, num_workers=2, carrier=carrier, limit_s=100)


def test_the_connection_to_a_shard_that_does_not_answer_is_made_again(
    one_shard: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """What was under way comes over the next one."""
    monkeypatch.setattr(liveness, "SILENT_S", 0.05)
    again = threading.Event()

    def body(worker: ps.Worker) -> int:
        table = worker.table({"w": torch.zeros(30)}, optimizer=ps.SGD(lr=1.0))
        (connection,) = link_of(worker).presence.connections
        if worker.rank:
            assert again.wait(LIMIT_S)
            table.push({"w": torch.ones(30)})
            return table.pull().result(LIMIT_S).version
        table.push({"w": torch.ones(30)})
        pulled = table.pull()
        before, ask = connection._call, connection._liveness._ask

        def nobody(_: float) -> None:
            raise ServerUnreachable("nobody answers")

        connection._liveness._ask = nobody
        while connection._call is before:  # it ends, or the test's own limit does
            again.wait(0.01)
        connection._liveness._ask = ask
        again.set()
        return pulled.result(LIMIT_S).version

    said: list[Any] = run_workers(one_shard, body, num_workers=2)
    assert said == [1, 1]


def test_a_shard_whose_frames_come_is_not_asked(one_shard: Cluster):
    """Each of them says that it lives."""
    heard: list[float] = []

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(30)}, optimizer=ps.SGD(lr=1.0))
        (connection,) = link_of(worker).presence.connections
        for _ in range(3):
            table.push({"w": torch.ones(30)}).result(LIMIT_S)
            heard.append(connection._liveness._heard_s)

    run_workers(one_shard, body)
    assert heard == sorted(set(heard))
    assert len(heard) == 3
