"""A worker's position is noted by a thread beside its training."""

from __future__ import annotations

import threading

import pytest

from ps_wire.errors import Evicted, ServerUnreachable
from ps_worker.membership.noting import Noting
from tests.until import LIMIT_S


def test_where_no_thread_can_be_had_the_next_note_is_put_all_the_same(monkeypatch):
    """The step that it came at hears of it; nobody waits for a note that is under way for ever."""
    put, now_s = threading.Event(), [0.0]
    noting = Noting(lambda: b"position", lambda: lambda _: put.set(), lambda _: None, now_s=lambda: now_s[0])

    def without(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", without)
        with pytest.raises(RuntimeError, match="thread"):
            noting.at_step()
    assert not put.is_set()
    now_s[0] = 60.0
    noting.at_step()
    assert put.wait(LIMIT_S)
    noting.at_epoch()


def test_a_note_that_is_put_late_is_put_as_the_incarnation_that_made_it(monkeypatch):
    """Its job may have gone back to a snapshot of before: there it is refused, without a word."""
    late: list[threading.Thread] = []
    notes: list[bytes] = []
    said: list[str] = []
    refused = threading.Event()

    def over(_: bytes) -> None:
        refused.set()
        raise Evicted("another has come", worker=0, incarnation=1)

    puts = [over, notes.append]
    noting = Noting(lambda: b"position", lambda: puts[0], said.append)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda thread: late.append(thread))  # noqa: PLW0108 - a method
        noting.at_step()
    del puts[0]  # it has joined again
    late[0].start()
    noting.at_epoch()
    assert refused.is_set()
    assert notes == [b"position"]
    assert said == []


def test_who_leaves_waits_for_a_note_that_is_on_its_way_and_no_longer_than_its_limit():
    """What fails then is said to nobody: the connection is closed, and another one goes on elsewhere."""
    goes, done = threading.Event(), threading.Event()
    said: list[str] = []

    def put(_: bytes) -> None:
        assert goes.wait(LIMIT_S)
        done.set()
        raise ServerUnreachable("Channel closed!")

    noting = Noting(lambda: b"position", lambda: put, said.append)
    noting.at_step()
    noting.settle(0.0)
    assert not done.is_set()
    goes.set()
    noting.settle(LIMIT_S)
    assert done.is_set()
    assert said == []


def test_a_note_that_cannot_be_put_while_its_worker_trains_is_said_once():
    said: list[str] = []

    def put(_: bytes) -> None:
        raise ServerUnreachable("no server")

    noting = Noting(lambda: b"position", lambda: put, said.append)
    noting.at_epoch()
    noting.at_epoch()
    assert said == ["this worker's position is not noted: no server"]
