"""A worker's position is noted by a thread beside its training."""

from __future__ import annotations

import threading

import pytest

from ps_worker.membership.noting import Noting
from tests.until import LIMIT_S


def test_where_no_thread_can_be_had_the_next_note_is_put_all_the_same(monkeypatch):
    """The step that it came at hears of it; nobody waits for a note that is under way for ever."""
    put, now_s = threading.Event(), [0.0]
    noting = Noting(lambda: b"position", lambda _: put.set(), lambda _: None, now_s=lambda: now_s[0])

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
