"""Collections of cyclic garbage by Python: none looks through all objects while a table is opened.

It holds the interpreter's lock for as long as there are objects, and looks again whenever they have grown by
a quarter: twelve times, 2.7 s of processor time in all, while a table of 32,768 partitions is opened, and the
event loop answers nobody meanwhile. None of these objects is garbage. So it looks once, afterwards: 0.5 s
(2026-11-22).

Of the whole process; a collector that was off before stays off.
"""

from __future__ import annotations

import gc
import threading
from types import TracebackType


class CollectorPause:
    """A context in which nothing is looked through, on any thread; what became garbage is found afterwards.

    Several may last at a time. `_lock` guards their number, and whether the collector was on before.
    """

    def __init__(self) -> None:
        """None lasts."""
        self._lock = threading.Lock()
        self._lasting = 0
        self._was_on = False

    def __enter__(self) -> None:
        """One more lasts."""
        with self._lock:
            if self._lasting == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._lasting += 1

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """One less."""
        with self._lock:
            self._lasting -= 1
            if self._lasting == 0 and self._was_on:
                gc.enable()


PAUSE = CollectorPause()  # of the process, as the collector is
