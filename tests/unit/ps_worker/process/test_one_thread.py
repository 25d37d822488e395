"""One thread is inside the calls of a worker, and is outside again however its call ended."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from ps_wire.errors import UsageError
from ps_worker.process.one_thread import OneThread
from tests.component.interrupting import interrupted_at
from tests.until import LIMIT_S


def elsewhere(inside: OneThread) -> str:
    """What another thread is told that enters; empty where it may."""
    told: list[str] = []

    def enter() -> None:
        try:
            with inside:
                told.append("")
        except UsageError as error:
            told.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(LIMIT_S)
    return told[0]


def test_another_thread_is_refused_until_the_first_one_is_outside():
    inside = OneThread()
    with inside:
        with inside:
            pass
        assert "inside a call of it" in elsewhere(inside)
    assert elsewhere(inside) == ""


def test_wherever_ctrl_c_lands_on_the_way_in_or_out_another_thread_may_enter():
    inside = OneThread()

    def call() -> None:
        with inside, inside:
            pass

    number = 0
    while interrupted_at(number, call):
        assert elsewhere(inside) == "", number
        number += 1
    assert number


@pytest.mark.usefixtures("uncollected")
def test_whenever_a_signal_comes_another_thread_may_enter():
    """Also between two instructions of a line: signals come at any time, thousands of them."""
    inside = OneThread()
    came = 0

    def interrupt(*_: object) -> None:
        nonlocal came
        came += 1
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(2000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 20e-6)
                for _ in range(100):
                    with inside:
                        pass
                while True:
                    time.sleep(LIMIT_S)
            except KeyboardInterrupt:
                pass
            with pytest.raises(RuntimeError):  # it is not ours
                inside._lock.release()
            if number % 20 == 19:  # a thread for each would take long
                assert elsewhere(inside) == "", f"after {came} signals"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert came == 2000


@pytest.mark.parametrize("depth", [1, 2])
def test_an_error_of_the_call_is_raised_on_and_another_thread_may_enter(depth: int):
    inside = OneThread()

    def call(deeper: int) -> None:
        with inside:
            if not deeper:
                raise KeyError("of the call")
            call(deeper - 1)

    with pytest.raises(KeyError):
        call(depth)
    assert elsewhere(inside) == ""
