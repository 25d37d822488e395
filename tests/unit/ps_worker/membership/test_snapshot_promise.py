"""When a step begins, as far as a snapshot is concerned, and what is promised of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ps_worker.membership import snapshot_promise as capturing
from ps_worker.membership.snapshot_promise import ForetoldCut, SnapshotPromise
from tests.until import LIMIT_S


class Worker:
    """Who trains: a thread of its own for each step that may have to wait."""

    def __init__(self, clocks: dict[int, int]) -> None:
        self.clocks = clocks
        self.capture = SnapshotPromise(lambda: dict(self.clocks), lambda: b"state of %d" % self.clocks[0])
        self.put: list[tuple[int, bytes]] = []
        self._there = threading.Event()

    def prepare(self, number: int) -> dict[int, int]:
        return self.capture.prepare(number, self._keep)

    def _keep(self, number: int, blob: bytes) -> None:
        self.put.append((number, blob))
        self._there.set()

    def captured(self) -> list[tuple[int, bytes]]:
        """What was put, once something was."""
        assert self._there.wait(LIMIT_S)
        return self.put

    def step(self) -> None:
        """Begins one and takes it, on all tables."""
        self.capture.begin()
        for table in self.clocks:
            self.clocks[table] += 1


def waiting(act: Callable[[], None]) -> threading.Thread:
    """Begins in a thread what is to wait."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive(), "it goes on"
    return thread


def test_a_step_that_begins_on_one_table_begins_on_no_other():
    """Two optimizers in turn on one batch: the cut is before a batch or after it, on both tables alike."""
    clocks = {0: 4, 1: 4}
    capture = SnapshotPromise(lambda: dict(clocks), lambda: b"")
    capture.begin()  # a batch
    clocks[0] = 5
    capture.begin([1])
    clocks[1] = 5
    assert capture.prepare(1, lambda *_: None) == {0: 5, 1: 5}


def test_the_first_step_that_has_not_begun_is_promised():
    """The one that comes next, or the one after that where it has begun already."""
    worker = Worker({0: 4})
    assert worker.prepare(1) == {0: 4}
    worker.capture.end(1)
    worker.capture.begin()
    assert worker.prepare(2) == {0: 5}
    worker.clocks[0] = 5
    assert worker.prepare(3) == {0: 5}


def test_no_promised_step_begins_before_the_cut_is_known():
    """Then it does, with what the worker has at its beginning."""
    worker = Worker({0: 4})
    assert worker.prepare(1) == {0: 4}
    step = waiting(worker.step)
    assert worker.put == []
    worker.capture.arm(1, {0: 4})
    step.join(LIMIT_S)
    assert worker.captured() == [(1, b"state of 4")]


def test_what_is_captured_is_that_of_the_beginning_of_the_cuts_step():
    """A later one than was promised, on all tables."""
    worker = Worker({0: 4, 1: 6})
    worker.prepare(1)
    worker.capture.arm(1, {0: 6, 1: 8})
    worker.step()
    worker.step()
    assert worker.put == []
    worker.step()
    assert worker.captured() == [(1, b"state of 6")]
    worker.step()
    assert len(worker.put) == 1


@pytest.mark.parametrize("number", [1, None])
def test_a_cut_that_is_given_up_lets_the_step_begin(number: int | None):
    """Nothing is captured."""
    worker = Worker({0: 4})
    worker.prepare(1)
    step = waiting(worker.step)
    worker.capture.end(number)
    step.join(LIMIT_S)
    assert not step.is_alive()
    assert worker.put == []


def test_what_is_said_of_another_cut_is_no_news():
    """Neither that it is armed nor that it is over."""
    worker = Worker({0: 4})
    worker.prepare(2)
    step = waiting(worker.step)
    worker.capture.arm(1, {0: 4})
    worker.capture.end(1)
    step.join(0.05)
    assert step.is_alive()
    worker.capture.arm(2, {0: 4})
    step.join(LIMIT_S)
    assert worker.captured() == [(2, b"state of 4")]


def test_nobody_waits_for_ever_for_a_coordinator_that_is_gone(monkeypatch: pytest.MonkeyPatch):
    """It gives the cut up before."""
    monkeypatch.setattr(capturing, "PROMISE_LIMIT_S", 0.05)
    worker = Worker({0: 4})
    worker.prepare(1)
    step = threading.Thread(target=worker.step, daemon=True)
    step.start()
    step.join(LIMIT_S)
    assert not step.is_alive()
    assert worker.put == []


# -- of a group of ranks -------------------------------------------------------------------------------


def leader(clocks: dict[int, int]) -> SnapshotPromise:
    return SnapshotPromise(lambda: dict(clocks), lambda: b"", foretells=1)


def test_the_leader_of_a_group_promises_no_step_that_another_rank_may_have_begun_unheard():
    """What it says with step 4 is heard before step 5 begins, and nothing that it has said already is."""
    clocks = {0: 4}
    promise = leader(clocks)
    assert promise.prepare(1, lambda *_: None) == {0: 5}
    promise.end(1)
    assert promise.foretell(0, 4) is None
    assert promise.prepare(2, lambda *_: None) == {0: 6}
    promise.end(2)
    clocks[0] = 5
    promise.begin()  # its own, of which the others have heard nothing
    assert promise.prepare(3, lambda *_: None) == {0: 6}


def test_what_the_ranks_hear_of_a_step_waits_for_the_cut_that_comes():
    """They would begin its step without knowing it."""
    promise = leader({0: 4})
    promise.prepare(1, lambda *_: None)
    heard: list[ForetoldCut | None] = []
    says = waiting(lambda: heard.append(promise.foretell(0, 4)))
    promise.arm(1, {0: 5})
    says.join(LIMIT_S)
    assert heard == [ForetoldCut(1, {0: 5})]


def test_a_rank_captures_where_its_leader_has_foretold_and_no_cut_that_was_given_up():
    worker, kept = Worker({0: 4}), []
    worker.capture = SnapshotPromise(
        lambda: dict(worker.clocks), lambda: b"%d" % worker.clocks[0], hand=lambda *it: kept.append(it[:2])
    )
    worker.capture.hear(ForetoldCut(1, {0: 5}))
    worker.capture.hear(None)
    worker.step()
    worker.step()
    assert kept == []
    worker.capture.hear(ForetoldCut(2, {0: 7}))
    worker.step()
    assert kept == []
    worker.capture.hear(ForetoldCut(2, {0: 7}))
    worker.step()
    worker.step()
    assert kept == [(2, b"7")]
