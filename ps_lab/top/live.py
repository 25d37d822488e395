"""Looks at a service again and again, and shows each view, until Ctrl-C.

The time between two looks grows with what a look takes, so that no server gives more than a hundredth of a
core to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live

from ps_lab.status.status import Status
from ps_lab.top.screen import drawn
from ps_lab.top.view import Film, View
from ps_wire.errors import Unavailable, UsageError
from ps_wire.text import one_line

LEAST_PAUSE_S = 1.0
MOST_PAUSE_S = 10.0
PAUSES_PER_LOOK = 100  # a server works on its answer for at most as long as the look takes


def views(
    look: Callable[[], Status],
    source: str,
    *,
    pause: Callable[[float], object] = time.sleep,
    now_s: Callable[[], float] = time.monotonic,
) -> Iterator[View]:
    """One view after each look, for ever. Servers that do not answer for a while are waited for.

    Raises:
        PsError: the servers refuse, or do not answer the first time.
    """
    film = Film(source)
    begun_s = now_s()
    view = film.add(look(), now_s())
    while True:
        look_s = now_s() - begun_s
        yield view
        pause(pause_s(look_s))
        begun_s = now_s()
        try:
            view = film.add(look(), now_s())
        except Unavailable as error:
            view = film.trouble(f"{type(error).__name__}: {one_line(error.message)}; trying on")


def pause_s(look_s: float) -> float:
    """How long to wait after a look that took so long."""
    return min(max(PAUSES_PER_LOOK * look_s, LEAST_PAUSE_S), MOST_PAUSE_S)


def show(console: Console, moments: Iterator[View]) -> None:
    """Draws each view on a screen of its own that the terminal forgets at the end.

    Raises:
        UsageError: the console is no terminal.
        KeyboardInterrupt: Ctrl-C; the terminal is as it was before.
    """
    if not console.is_terminal:
        raise UsageError("ps-lab top draws on a terminal, and stdout is none: take ps-lab status --json")
    first = next(moments)
    with Live(Group(*drawn(first)), console=console, screen=True, auto_refresh=False) as live:
        for view in moments:
            live.update(Group(*drawn(view)), refresh=True)
