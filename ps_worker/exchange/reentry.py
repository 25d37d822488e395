"""What an exchange does when its worker was evicted and has joined again: a base of `Exchange`.

Pushes and pulls of the incarnation before are over: what was on its way is dropped. The memory stays.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

from ps_wire.errors import Evicted, PsError
from ps_wire.frames import frame as wire
from ps_worker.exchange.pulls import Pulls
from ps_worker.exchange.pushes import Pushes


class Reentry:
    """See the module's docstring."""

    _begun: int
    _opened: int
    _changed: threading.Condition
    _error: PsError | None
    _hyper_frames: OrderedDict[int, wire.Frame]
    _incarnation: int
    _pushes: Pushes
    _pulls: Pulls

    @property
    def evicted(self) -> bool:
        """Whether its worker was evicted, and has not joined again yet."""
        return isinstance(self._error, Evicted)

    def reenter(self, incarnation: int) -> None:
        """Begins anew as this incarnation, before it connects."""
        with self._changed:
            self._incarnation = incarnation
            self._pushes = Pushes()
            self._pulls.forget()
            for number, frame in self._hyper_frames.items():
                self._hyper_frames[number] = replace(frame, incarnation=incarnation)
            self._error = None
        self._begun = self._opened = -1
