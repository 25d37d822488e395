"""`pytest --stress`: threads change at every instruction, and at locks of ours they yield at random.

The interpreter lets another thread run every 5 ms, so that most places between two instructions, where two
threads could meet, are never tried. Here it does so every microsecond, and whoever takes or lets go of a lock
made in `ps_wire`, `ps_server` or `ps_worker` may give way, for a moment or for up to a millisecond. Who gives
way when is drawn from a seed, which pytest prints; what the system makes of it is not.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

import pytest

from tests import seeded

SWITCH_INTERVAL_S = 1e-6  # of the interpreter: 5 ms else
YIELDS, SLEEPS = 0.2, 0.02  # of all times that a lock is taken or let go
LONGEST_S = 1e-3
OURS = ("ps_wire.", "ps_server.", "ps_worker.")

_lock, _rlock, _condition = threading.Lock, threading.RLock, threading.Condition


def pytest_addoption(parser: pytest.Parser) -> None:
    seeded.add_option(
        parser,
        "stress",
        "threads change all the time, and give way at locks, as drawn from SEED; see tests/stress.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    seed = seeded.draw(config, "stress")
    if seed is not None:
        begin(seed)


def pytest_sessionstart(session: pytest.Session) -> None:
    seeded.say(session.config, "stress")


def begin(seed: int) -> None:
    """From now on, for the whole process."""
    drawn = random.Random(seed)

    def give_way() -> None:
        place = drawn.random()
        if place < SLEEPS:
            time.sleep(place / SLEEPS * LONGEST_S)
        elif place < SLEEPS + YIELDS:
            time.sleep(0)

    class Condition(_condition):  # type: ignore[misc, valid-type]
        """One that makes its own lock makes one that yields."""

        def __init__(self, lock: Any = None) -> None:
            super().__init__(Yielding(_rlock(), give_way) if lock is None and _ours() else lock)

    threading.Lock = lambda: Yielding(_lock(), give_way) if _ours() else _lock()  # type: ignore[assignment]
    threading.RLock = lambda: Yielding(_rlock(), give_way) if _ours() else _rlock()  # type: ignore[assignment]
    threading.Condition = Condition  # type: ignore[misc]
    sys.setswitchinterval(SWITCH_INTERVAL_S)


class Yielding:
    """A lock around which threads give way."""

    def __init__(self, lock: Any, give_way: Any) -> None:
        self._lock, self._give_way = lock, give_way

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._give_way()
        return bool(self._lock.acquire(blocking, timeout))

    def release(self) -> None:
        self._lock.release()
        self._give_way()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:  # what a condition asks of its lock
        return getattr(self._lock, name)


def _ours() -> bool:
    """Whether the module that makes a lock is one of the project's."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith(OURS)
