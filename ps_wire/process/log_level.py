"""How much a process of any package logs: `--log-level`, and PS_LOG_LEVEL for what has no options."""

from __future__ import annotations

import logging
import os
from enum import StrEnum

from ps_wire.errors import UsageError

VARIABLE = "PS_LOG_LEVEL"


class LogLevel(StrEnum):
    """The least severe lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """As `logging` has it."""
        return logging.getLevelNamesMapping()[self.name]


def from_environment() -> LogLevel:
    """The level of a process whose command line says nothing of it; `info` by default.

    Raises:
        UsageError: the variable names no level.
    """
    text = os.environ.get(VARIABLE, LogLevel.INFO)
    if text not in tuple(LogLevel):
        raise UsageError(f"unknown {VARIABLE} {text!r}; valid are: {', '.join(LogLevel)}", spec=text)
    return LogLevel(text)
