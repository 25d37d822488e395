"""The option `--log-level` of the commands: apart from the level, for a script needs no command line."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from ps_wire.process.log_level import VARIABLE, LogLevel

LogLevelOption: TypeAlias = Annotated[
    LogLevel, typer.Option("--log-level", envvar=VARIABLE, help="The least severe lines that are logged.")
]
