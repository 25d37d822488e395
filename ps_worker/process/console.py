"""The worker's log at the terminal of a script that has set up no logging of its own.

Its lines hold what peers say of themselves: they are escaped here.
"""

from __future__ import annotations

import logging
import sys

from ps_wire.process.log_level import from_environment
from ps_wire.text import one_line


def show(logger: logging.Logger) -> None:
    """Has the logger's lines shown, unless the script has given it, or the root logger, a handler.

    Raises:
        UsageError: PS_LOG_LEVEL names no level.
    """
    if not logger.handlers and not logging.getLogger().handlers:
        logger.addHandler(_Terminal())
        logger.setLevel(from_environment().number)


class _Terminal(logging.Handler):
    """Writes to what `sys.stderr` is by then; silent once the root logger shows the lines itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        if logging.getLogger().handlers or sys.stderr is None or sys.stderr.closed:
            return
        sys.stderr.write(f"{one_line(record.getMessage())}\n")
        sys.stderr.flush()
