"""A worker's position is noted by a thread beside its training."""

from __future__ import annotations

import threading

import pytest

from ps_wire.errors import Evicted
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
