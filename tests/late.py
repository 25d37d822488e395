"""`pytest --late`: threads stand still where others do not expect it, now and then, for up to half a second.

On a machine that is full, who has started a thread may go on long after that one has said its first word. A
test, or the service, that holds only where the first is the faster one fails once in some hundred runs
beside load. Here threads stand still on an idle machine: behind the start of another one, behind a wait for
an event, before a worker connects or computes gradients, before what the coordinator says, and before a turn
of a server's loop. Who stands still when is drawn from a seed, which pytest prints; what the system makes of
it is not.
"""

from __future__ import annotations

import asyncio
import functools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests import seeded

LONGEST_S = 0.5
STARTS, WAITS, CONNECTS, GRADIENTS, WORDS, TURNS = 0.2, 0.1, 0.2, 0.05, 0.15, 0.002  # of all of them


def pytest_addoption(parser: pytest.Parser) -> None:
    seeded.add_option(
        parser, "late", "threads stand still now and then, as drawn from SEED; see tests/late.py"
    )


def pytest_configure(config: pytest.Config) -> None:
    seeded.draw(config, "late")


def pytest_sessionstart(session: pytest.Session) -> None:
    seeded.say(session.config, "late")


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported by now is what tests have."""
    if session.config.getoption("--late") is not None:
        begin(int(session.config.option.late))


def begin(seed: int) -> None:
    """From now on, for the whole process."""
    import torch  # noqa: PLC0415 - only where it is asked for

    import ps_worker  # noqa: PLC0415
    from ps_worker.membership.member_stream import MemberStream  # noqa: PLC0415

    drawn = random.Random(seed)

    def stand_still(share: float) -> None:
        if drawn.random() < share:
            time.sleep(drawn.random() * LONGEST_S)

    def before(share: float, function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def late(*given: Any, **named: Any) -> Any:
            stand_still(share)
            return function(*given, **named)

        return late

    def behind(share: float, function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def late(*given: Any, **named: Any) -> Any:
            found = function(*given, **named)
            stand_still(share)
            return found

        return late

    threading.Thread.start = behind(STARTS, threading.Thread.start)  # type: ignore[method-assign]
    threading.Event.wait = behind(WAITS, threading.Event.wait)  # type: ignore[method-assign]
    ps_worker.connect = before(CONNECTS, ps_worker.connect)
    torch.Tensor.backward = before(GRADIENTS, torch.Tensor.backward)
    words = before(WORDS, MemberStream._receive_reply)
    MemberStream._receive_reply = words  # type: ignore[method-assign]
    asyncio.Handle._run = before(TURNS, asyncio.Handle._run)  # type: ignore[attr-defined]
