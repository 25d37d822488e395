"""A snapshot that is taken beside what trains.

Its cut is a step that has not begun when it is fixed: who trains waits for that before a step, and goes on.
Who waited for the whole snapshot there would wait for itself.
"""

from __future__ import annotations

import threading

from ps_lab.snapshots import calls as snapshot_calls
from ps_wire.access.access import OPEN

from .until import LIMIT_S


class Taking:
    """One snapshot of a job that runs, taken on a thread of its own."""

    def __init__(self, coordinator: str, job: str) -> None:
        """Begins."""
        self._coordinator, self._job = coordinator, job
        self._fixed = threading.Event()
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def wait_fixed(self) -> None:
        """Until it is known which steps are in it: on the thread of a worker, before a step."""
        assert self._fixed.wait(LIMIT_S), "the cut is never fixed"

    def wait(self) -> None:
        """Until it is there: some steps later, or on another thread."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the snapshot never comes"

    def _take(self) -> None:
        for progress in snapshot_calls.take(self._coordinator, self._job, OPEN):
            if "to reach the cut" in progress.phase:
                self._fixed.set()
        self._fixed.set()
