"""Status that is drawn again and again on a terminal, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ps_lab.status.report import tables
from ps_lab.status.status import Status
from ps_wire.errors import PsError, Unavailable, UsageError
from ps_wire.text import one_line

EVERY_S = 1.0


def watch(
    console: Console, look: Callable[[], Status], *, pause: Callable[[float], object] = time.sleep
) -> None:
    """Draws what `look` gives, on a screen of its own that the terminal forgets at the end.

    Servers that do not answer for a while are waited for: the last figures stay, and it is said.

    Raises:
        UsageError: the console is no terminal, on which nothing can be drawn again.
        PsError: the servers refuse, or do not answer the first time.
        KeyboardInterrupt: Ctrl-C; the terminal is as it was before.
    """
    if not console.is_terminal:
        raise UsageError("--watch draws on a terminal, and stdout is none: leave it out, or take --json")
    shown = Group(*tables(look()))
    with Live(shown, console=console, screen=True, auto_refresh=False) as live:
        while True:
            pause(EVERY_S)
            try:
                shown = Group(*tables(look()))
            except Unavailable as error:
                live.update(Group(Text(_said(error), style="bold red"), shown), refresh=True)
            else:
                live.update(shown, refresh=True)


def _said(error: PsError) -> str:
    return f"{type(error).__name__}: {one_line(error.message)}; trying on"
