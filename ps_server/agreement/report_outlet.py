"""The outlet of a shard's reports (norms, attendances) to whoever coordinates by now.

It must not know what is reported, nor over which stream. `_sink` is set in one assignment; whoever sends
meanwhile takes the one before or the new one, and who begins to coordinate asks for what is pending.
"""

from __future__ import annotations

from collections.abc import Callable

from ps_server.agreement.messages import Report


class ReportOutlet:
    """Reports go here from any thread, in the order of calls."""

    def __init__(self) -> None:
        """Nobody coordinates yet: reports are dropped, and are pending when somebody does."""
        self._sink: Callable[[Report], None] | None = None

    def connect(self, sink: Callable[[Report], None]) -> None:
        """From now on they go there; `sink` must not block."""
        self._sink = sink

    def send(self, report: Report) -> None:
        """A report leaves."""
        sink = self._sink
        if sink is not None:
            sink(report)
