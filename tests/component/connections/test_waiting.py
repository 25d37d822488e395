"""A wait that is long says what for, and for whom."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

import ps_worker as ps
from ps_wire.errors import ServerUnreachable
from ps_worker.process import waiting
from ps_worker.process.waiting import AFTER_S, AGAIN_S, LongWaits, Wait, wait_of, waits
from tests.component.service import LIMIT_S, Cluster, fresh_name, together
from tests.inside import steps_of


def test_of_nested_waits_the_outermost_counts_and_it_ends_with_an_error_too():
    mine = threading.get_ident()

    @waits("one")
    def inner() -> str:
        found = wait_of(mine)
        assert found is not None
        return found.what

    @waits("other", inside_step=True)
    def outer() -> str:
        found = wait_of(mine)
        assert found is not None
        assert found.inside_step
        return f"{found.what}, {inner()}"

    @waits("third")
    def fails() -> None:
        raise ServerUnreachable("gone")

    assert inner() == "one"
    assert outer() == "other, other"
    with pytest.raises(ServerUnreachable):
        fails()
    assert wait_of(mine) is None


def test_a_mark_that_a_ctrl_c_left_behind_is_replaced_by_the_next_wait(monkeypatch):
    """It may come between the end of a wait and the taking away of its mark."""
    mine = threading.get_ident()

    def ended() -> int:
        return id(object())

    @waits("weights")
    def waited() -> str:
        found = wait_of(mine)
        assert found is not None
        return found.what

    monkeypatch.setitem(waiting._now, mine, Wait("what is over", inside_step=True, frame=ended()))
    assert waited() == "weights"
    assert wait_of(mine) is None
    monkeypatch.setitem(waiting._now, mine, Wait("what goes on", inside_step=True, frame=id(sys._getframe())))
    assert waited() == "what goes on"


class Clocked:
    """Long waits of a thread that is in a wait of the library, on a clock of ours."""

    def __init__(self, monkeypatch) -> None:
        self.now_s = 100.0
        self.counted = (3, 30)
        self.said: list[str] = []
        self.whom: list[str] | ps.PsError = ["waiting for worker 3, clock 41, lease 4.2 s left"]
        self.waits = LongWaits(lambda: self.counted, self._whom, self.said.append, lambda: self.now_s)
        self.wait: Wait | None = Wait("weights", inside_step=False, frame=id(sys._getframe()))
        monkeypatch.setattr(waiting, "wait_of", lambda _: self.wait)

    def _whom(self) -> list[str]:
        if isinstance(self.whom, ps.PsError):
            raise self.whom
        return self.whom

    def look(self, after_s: float) -> str:
        self.now_s += after_s
        self.waits.look()
        if self.waits._asking is not None:
            self.waits._asking.join(LIMIT_S)
        return self.waits.text


def test_only_a_long_wait_says_for_whom_and_not_more_often_than_a_person_reads(monkeypatch):
    clocked = Clocked(monkeypatch)
    text = "waiting for weights for 5 s; waiting for worker 3, clock 41, lease 4.2 s left"
    assert [clocked.look(after_s) for after_s in (0, AFTER_S - 0.1, 0.1)] == ["", "", text]
    assert clocked.look(AGAIN_S - 0.1) == text
    assert clocked.said == [text]
    assert clocked.look(0.2).startswith("waiting for weights for 15 s; ")
    assert len(clocked.said) == 2


def test_a_thread_that_gets_on_waits_for_nobody(monkeypatch):
    """It comes to the same place with each step."""
    clocked = Clocked(monkeypatch)
    clocked.look(0)
    for _ in range(20):
        clocked.counted = clocked.counted[0] + 1, 30
        assert clocked.look(AFTER_S) == ""
    assert clocked.look(AFTER_S) != ""
    clocked.wait = None
    assert clocked.look(1) == ""


def test_a_coordinator_that_does_not_say_for_whom_leaves_the_rest(monkeypatch):
    clocked = Clocked(monkeypatch)
    clocked.whom = ServerUnreachable("gone")
    clocked.look(0)
    assert clocked.look(AFTER_S) == "waiting for weights for 5 s"


def test_who_waits_at_a_gate_names_the_one_behind_in_its_log_and_in_its_status(
    one_shard: Cluster, monkeypatch
):
    """Its clock, and what is left of its lease."""
    monkeypatch.setattr(waiting, "AFTER_S", 0.2)
    job, seen, said = fresh_name(), threading.Event(), []

    def body(rank):
        def train():
            with ps.connect(servers=one_shard.servers, job=job, num_workers=2, worker=rank) as worker:
                table = worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))
                if rank == 1:
                    assert seen.wait(LIMIT_S)
                else:

                    def say(text: str) -> None:
                        said.append(text)
                        if "waiting for worker 1" in text:
                            seen.set()

                    steps_of(worker).waits._say = say
                table.push({"w": torch.ones(3)})
                table.pull().result()
                worker.finish()

        return train

    together([body(0), body(1)])
    assert any("waiting for worker 1, clock 0, lease " in text and text.endswith(" s left") for text in said)
