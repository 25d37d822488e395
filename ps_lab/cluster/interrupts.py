"""Signals as events: they are put into a queue, and whoever runs the loop decides."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal arrived."""

    number: int


@contextmanager
def signals_into(events: queue.SimpleQueue[Any]) -> Iterator[None]:
    """While open, the stopping signals become `Signalled` events; ignored ones (nohup) stay ignored.

    Only in the main thread. A SimpleQueue, since putting into it is safe inside a signal handler.
    """

    def put(number: int, _frame: FrameType | None) -> None:
        events.put(Signalled(number))

    before = {number: signal.getsignal(number) for number in STOPPING}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, put)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
