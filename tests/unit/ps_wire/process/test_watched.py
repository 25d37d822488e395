"""What runs beside calls ends unseen by nobody: it is logged, and told, or it begins again."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from ps_wire.process import watched
from tests.until import LIMIT_S

log = logging.getLogger("watched")


class Broken:
    """Raises so many times, then comes to its end."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.runs = 0
        self.ended = threading.Event()

    def run(self) -> None:
        self.runs += 1
        if self.left:
            self.left -= 1
            raise ValueError(f"number {self.runs}")
        self.ended.set()

    async def go(self) -> None:
        self.run()


def bugs(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines of the log, each with its trace."""
    assert all(record.exc_info for record in caplog.records)
    return caplog.messages


def test_a_thread_that_ends_by_a_bug_is_logged_and_told(caplog: pytest.LogCaptureFixture):
    told: list[Exception] = []
    thread = watched.thread("ps-mine", Broken(1).run, log=log, failed=told.append)
    assert thread.name == "ps-mine"
    assert thread.daemon
    thread.start()
    thread.join(LIMIT_S)
    assert bugs(caplog) == ["bug: ps-mine ended"]
    assert [str(error) for error in told] == ["number 1"]


def test_a_thread_that_comes_to_its_end_says_nothing(caplog: pytest.LogCaptureFixture):
    told: list[Exception] = []
    thread = watched.thread("ps-mine", Broken(0).run, log=log, failed=told.append)
    thread.start()
    thread.join(LIMIT_S)
    assert not caplog.messages
    assert not told


def test_a_thread_without_an_end_begins_again_until_it_returns(caplog: pytest.LogCaptureFixture):
    pauses: list[float] = []
    broken = Broken(2)
    thread = watched.endless_thread("ps-mine", broken.run, log=log, pause=pauses.append)
    thread.start()
    thread.join(LIMIT_S)
    assert broken.ended.is_set()
    assert pauses == [watched.AGAIN_S] * 2
    assert bugs(caplog) == ["bug: ps-mine ended; it begins again in 1 s"] * 2


def test_a_timer_that_ends_by_a_bug_is_logged(caplog: pytest.LogCaptureFixture):
    timer = watched.timer("ps-limit", 0.0, Broken(1).run, log=log)
    assert timer.daemon
    timer.start()
    timer.join(LIMIT_S)
    assert bugs(caplog) == ["bug: ps-limit ended"]


async def test_a_task_that_ends_by_a_bug_is_logged_and_told(caplog: pytest.LogCaptureFixture):
    told: asyncio.Queue[Exception] = asyncio.Queue()
    watched.task("a task", Broken(1).go(), log=log, failed=told.put_nowait)
    async with asyncio.timeout(LIMIT_S):
        assert str(await told.get()) == "number 1"
    assert bugs(caplog) == ["bug: a task ended"]


async def test_a_task_that_is_cancelled_is_no_bug(caplog: pytest.LogCaptureFixture):
    told: list[Exception] = []

    async def wait() -> None:
        await asyncio.Event().wait()

    tasks = [
        watched.task("a task", wait(), log=log, failed=told.append),
        watched.endless_task("tasks", wait, log=log),
    ]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=LIMIT_S)
    assert all(task.cancelled() for task in tasks)
    assert not caplog.messages
    assert not told


async def test_a_task_without_an_end_begins_again_until_it_returns(caplog: pytest.LogCaptureFixture):
    pauses: list[float] = []

    async def pause(pause_s: float) -> None:
        pauses.append(pause_s)

    broken = Broken(3)
    async with asyncio.timeout(LIMIT_S):
        await watched.endless_task("tasks", broken.go, log=log, pause=pause)
    assert broken.runs == 4
    assert pauses == [watched.AGAIN_S] * 3
    assert bugs(caplog) == ["bug: tasks ended; it begins again in 1 s"] * 3


async def test_the_outcome_of_what_nobody_awaits_is_logged(caplog: pytest.LogCaptureFixture):
    executed = asyncio.get_running_loop().run_in_executor(None, Broken(1).run)
    watched.outcome("an order", executed, log=log)
    await asyncio.wait([executed], timeout=LIMIT_S)
    await asyncio.sleep(0)
    assert bugs(caplog) == ["bug: an order ended"]


def test_who_cannot_be_told_is_logged_too(caplog: pytest.LogCaptureFixture):
    def failed(_: Exception) -> Any:
        raise KeyError("gone")

    thread = watched.thread("ps-mine", Broken(1).run, log=log, failed=failed)
    thread.start()
    thread.join(LIMIT_S)
    assert bugs(caplog) == ["bug: ps-mine ended", "bug: nobody could be told that ps-mine has ended"]
