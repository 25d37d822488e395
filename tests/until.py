"""The one bounded wait for what tells nobody that it happened: state of another thread or process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# For whatever takes a second or two on an idle machine: it only bounds hangs. On two cores a server took more
# than 40 s to start beside nine busy processes, its libraries not in the page cache, and more than 140 s
# beside thirty. Less than half of a test's own limit, which does not say what was waited for.
LIMIT_S = 280.0
PAUSE_S = 0.01


def until(condition: Callable[[], object], what: str = "it is so", *, pause_s: float = PAUSE_S) -> None:
    """Looks again and again, at most `LIMIT_S`. Where something tells, wait for that instead."""
    deadline_s, pause = time.monotonic() + LIMIT_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s, f"never: {what}"
        pause.wait(pause_s)
