"""The end of every command: named errors as one line on stderr, and their exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import cast

import typer

from ps_wire.errors import PsError, UsageError
from ps_wire.process.program import CTRL_C
from ps_wire.text import one_line

CLICK_USAGE = 2


def run(app: typer.Typer, name: str, exit_code: Callable[[PsError], int] | None = None) -> None:
    """Runs a command line and ends the process if anything but success came of it.

    Args:
        app: the command.
        name: as a person types it; goes before every message.
        exit_code: of an error; default: what its class says.
    """
    # click's root of what a person typed wrong; typer exports only its leaves
    refused = cast(type[typer.BadParameter], typer.BadParameter.__base__)
    try:
        outcome = app(standalone_mode=False)
    except PsError as error:
        sys.stderr.write(f"{name}: {type(error).__name__}: {one_line(error.message)}\n")
        sys.exit(exit_code(error) if exit_code is not None else error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(CTRL_C)
    except refused as error:
        message = error.format_message()
        if not message and error.ctx is not None:  # nothing was typed: show what could be
            error.ctx.get_help()
        else:
            sys.stderr.write(f"{name}: {message} (see {name} --help)\n")
        sys.exit(UsageError.exit_code)
    if isinstance(outcome, int):  # click's own: 0 after --help, 2 for usage, 130 for Ctrl-C
        sys.exit(UsageError.exit_code if outcome == CLICK_USAGE else outcome)
