"""Calls beside a script are made in the order of their turns, are waited for, and end with the group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from ps_wire.errors import GroupBroken, NonFiniteGradient
from ps_worker.group import beside as module
from ps_worker.group.beside import Beside
from tests.unit.ps_worker.group.wires import Town, town
from tests.until import LIMIT_S


@contextmanager
def made() -> Iterator[tuple[Town, Beside]]:
    with town(2) as group:
        beside = Beside(group.channels[0], group.aborts[0])
        yield group, beside
        beside.close()


def raises(error: BaseException) -> Callable[[], object]:
    def call() -> None:
        raise error

    return call


def test_calls_are_made_in_the_order_of_their_turns_beside_the_thread_that_puts_them():
    with made() as (_, beside):
        assert not beside.used
        made_by: list[tuple[int, str]] = []
        go_on = threading.Event()

        def call(turn: int) -> None:
            assert go_on.wait(LIMIT_S)
            made_by.append((turn, threading.current_thread().name))

        for _ in range(2):  # two steps
            made_by.clear()
            go_on.clear()
            for turn in (2, 0, 1):
                beside.put(turn, partial(call, turn))
            assert beside.used  # also while the first one is under way
            go_on.set()  # none was waited for until now
            beside.wait()
            assert made_by == [(turn, "ps-reduce") for turn in range(3)]
            assert not beside.used


def test_a_call_is_waited_for_while_those_behind_it_go_on():
    with made() as (_, beside):
        go_on = threading.Event()
        beside.put(0, lambda: None)
        beside.put(1, lambda: go_on.wait(LIMIT_S))
        beside.wait_turn(0)
        assert not beside.idle
        assert not beside.over_within(0.0)
        go_on.set()
        beside.wait_turn(1)
        assert beside.over_within(LIMIT_S)
        assert beside.idle
        assert beside.used
        beside.wait()
        assert not beside.used


def test_who_waits_for_a_turn_hears_of_an_error_and_so_does_who_waits_for_all():
    with made() as (_, beside):
        beside.put(1, lambda: None)
        beside.put(0, raises(NonFiniteGradient("x")))
        for wait in (partial(beside.wait_turn, 1), partial(beside.over_within, LIMIT_S), beside.wait):
            with pytest.raises(NonFiniteGradient):
                wait()
        assert beside.idle


def test_a_call_whose_turn_has_not_come_is_forgotten_at_the_end_of_a_step():
    """A step was broken off of which a later bucket was complete."""
    with made() as (_, beside):
        calls: list[str] = []
        beside.put(1, lambda: calls.append("of the step before"))
        beside.wait()
        assert not beside.used
        beside.put(0, lambda: calls.append("of this one"))
        beside.wait()
        assert calls == ["of this one"]


def test_an_error_ends_the_calls_of_the_step_and_is_raised_where_they_are_waited_for():
    with made() as (_, beside):
        calls: list[int] = []
        beside.put(1, lambda: calls.append(1))
        beside.put(0, raises(NonFiniteGradient("x")))
        with pytest.raises(NonFiniteGradient):
            beside.wait()
        beside.put(0, lambda: calls.append(0))
        beside.wait()
        assert calls == [0]


def test_a_group_that_has_ended_frees_who_waits_for_a_call_and_takes_no_more():
    with made() as (group, beside):
        begun, go_on, over = threading.Event(), threading.Event(), threading.Event()

        def waits() -> None:
            begun.set()
            go_on.wait(LIMIT_S)
            over.set()

        beside.put(0, waits)
        assert begun.wait(LIMIT_S)
        assert beside.used
        group.aborts[0].set("rank 1 was silent")
        with pytest.raises(GroupBroken, match="rank 1 was silent"):
            beside.wait()
        with pytest.raises(GroupBroken, match="rank 1 was silent"):
            beside.put(0, raises(AssertionError()))
        assert not over.is_set()
        go_on.set()


def test_who_is_interrupted_while_it_waits_ends_the_group(monkeypatch: pytest.MonkeyPatch):
    with made() as (group, beside):
        with monkeypatch.context() as patch:
            patch.setattr(group.aborts[0].changed, "wait_for", raises_any(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                beside.wait()
        assert group.said == ["rank 0 was interrupted while it waited for the others"]


def raises_any(error: BaseException) -> Callable[..., object]:
    def call(*_: object, **__: object) -> None:
        raise error

    return call


def test_who_looks_while_it_waits_holds_no_lock_that_others_need(monkeypatch: pytest.MonkeyPatch):
    """It may ask the group's store, and the group may end meanwhile."""

    def ends() -> None:
        with group.aborts[0].changed:
            ended.set()

    def look() -> None:
        threading.Thread(target=ends, daemon=True).start()
        seen.append(ended.wait(LIMIT_S))
        go_on.set()

    monkeypatch.setattr(module, "LOOK_S", 0.001)
    ended, go_on, seen = threading.Event(), threading.Event(), list[bool]()
    with town(2) as group:
        beside = Beside(group.channels[0], group.aborts[0], look)
        beside.put(0, lambda: go_on.wait(LIMIT_S))
        beside.wait()
        beside.close()
    assert set(seen) == {True}


def test_a_call_is_not_waited_for_whose_thread_was_never_started(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C came first; what had not left of the step abstains."""
    with made() as (group, beside):
        with monkeypatch.context() as patch:
            patch.setattr(module.watched, "thread", raises_any(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                beside.put(0, raises(ZeroDivisionError()))
        assert not beside.used
        beside.wait()
        assert not group.said


def test_a_bug_in_a_call_ends_the_group(caplog: pytest.LogCaptureFixture):
    with made() as (group, beside):
        beside.put(0, raises(ZeroDivisionError("by what")))
        with pytest.raises(GroupBroken, match="rank 0: ZeroDivisionError: by what"):
            beside.wait()
        assert group.said == ["rank 0: ZeroDivisionError: by what"]
    assert "ZeroDivisionError" in caplog.text
