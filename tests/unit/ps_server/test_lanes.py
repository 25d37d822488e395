"""Work of a job is done in the order in which it was given; that of another job waits for none of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextvars import ContextVar

import pytest

from ps_server.lanes import Lanes
from ps_wire.errors import ServerNotReady
from tests.until import LIMIT_S, until


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = Lanes()
    yield made
    made.close()


def test_a_job_waits_for_its_own_work_only(lanes: Lanes) -> None:
    """One thing at a time, in order; what another job has under way holds nothing up."""
    go, done = threading.Event(), []
    held = lanes.submit("a", lambda: go.wait(LIMIT_S))
    behind = [lanes.submit("a", lambda number=number: done.append(number)) for number in range(100)]
    assert lanes.submit("b", lambda: 7).result(LIMIT_S) == 7
    assert not any(it.done() for it in (held, *behind))
    go.set()
    assert held.result(LIMIT_S)
    wait(behind, LIMIT_S)
    assert done == [*range(100)]


def test_what_fails_is_told_and_holds_nothing_up(lanes: Lanes) -> None:
    failed = lanes.submit("a", lambda: 1 // 0)
    assert lanes.submit("a", lambda: 7).result(LIMIT_S) == 7
    assert isinstance(failed.exception(LIMIT_S), ZeroDivisionError)


def test_what_was_given_is_done_though_nobody_waits_for_it(lanes: Lanes) -> None:
    """Else shards would not agree on what was ordered."""
    go, done = threading.Event(), []
    lanes.submit("a", lambda: go.wait(LIMIT_S))
    assert not lanes.submit("a", lambda: done.append(1)).cancel()
    (over,) = lanes.pending()
    go.set()
    over.result(LIMIT_S)
    assert done == [1]
    until(lambda: not lanes._waiting, "its thread has put it away")
    assert lanes.pending() == []


def test_once_closed_what_comes_is_refused_again_and_again() -> None:
    """What was given is done. Who waited behind work that nobody does would wait for ever."""
    lanes = Lanes()
    go, done = threading.Event(), []
    lanes.submit("a", lambda: go.wait(LIMIT_S))
    given = lanes.submit("a", lambda: done.append(1))
    lanes.close()
    for job in ("a", "b", "b"):
        with pytest.raises(ServerNotReady):
            lanes.submit(job, lambda: done.append(2))
    go.set()
    given.result(LIMIT_S)
    assert done == [1]


async def test_an_event_loop_waits_for_work_that_is_done_in_the_context_of_who_asks(lanes: Lanes) -> None:
    said: ContextVar[str] = ContextVar("said")
    said.set("who asks")
    assert await lanes.run("a", lambda number: (number, said.get()), 7) == (7, "who asks")
    with pytest.raises(ZeroDivisionError):
        await lanes.run("a", lambda: 1 // 0)


async def test_what_a_caller_asked_that_has_gone_meanwhile_is_not_begun(lanes: Lanes) -> None:
    """Its file is given up, say: nothing is to be written to it any more."""
    go, done = threading.Event(), []
    held = lanes.submit("a", lambda: go.wait(LIMIT_S))
    gone = asyncio.create_task(lanes.run("a", done.append, "of who has gone"))
    stays = asyncio.create_task(lanes.run("a", done.append, "of who stays"))
    await asyncio.sleep(0)  # both are asked
    gone.cancel()
    await asyncio.wait([gone])
    go.set()
    await stays
    assert held.result(LIMIT_S)
    assert done == ["of who stays"]
