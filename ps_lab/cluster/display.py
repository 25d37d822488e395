"""The screen of a run: the output of its processes, each with its name and colour, and its progress.

On a terminal the progress is one line that stays at the bottom; elsewhere a plain line every few seconds.
Nothing that is shown is markup, for peers have said much of it. Output comes from many threads at once;
rich's console lets one in at a time.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ps_lab.errors import OutputClosed
from ps_wire.text import one_line

PLAIN_EVERY_S = 5.0
PLAIN_WIDTH = 160  # of tables where there is no terminal to ask

_WORKER_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green")
_SERVER_STYLE = "bright_black"


def make_console() -> Console:
    """A console on stdout, wide enough for tables where stdout is a file or a pipe."""
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


def make_error_console() -> Console:
    """A console on stderr, for our own sentences."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


class Display:
    """A context manager that owns the console while a run lasts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._closed = False
        self._said = ""
        self._said_s = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def line(self, process: str, text: str) -> None:
        """A line of a process's output; any thread. Its name stands once, however the line begins.

        A worker that does not know its number yet names itself `worker`.
        """
        for name in (process, process.partition(" ")[0]):
            text = text.removeprefix(f"{name}: ")
        self._print(process, Text.from_ansi(text), _style(process))

    def note(self, text: str) -> None:
        """A sentence of our own."""
        self._print("ps-lab", Text(one_line(text)), "bold")

    def progress(self, text: str, above: RenderableType | None = None) -> None:
        """The progress now; shown at once on a terminal; elsewhere at times, where it has changed.

        Args:
            text: one line.
            above: what stands above it on a terminal, such as a table.

        Raises:
            OutputClosed: nobody reads what we write, as after `| head`.
        """
        if self._closed:
            raise OutputClosed("stdout was closed")
        if self._live is not None:
            line = Text(one_line(text), style="bold", no_wrap=True, overflow="ellipsis")
            self._live.update(line if above is None else Group(above, line))
        elif text != self._said and time.monotonic() - self._said_s >= PLAIN_EVERY_S:
            self._said, self._said_s = text, time.monotonic()
            self.note(text)

    def _print(self, name: str, text: Text, style: str) -> None:
        try:
            self._console.print(Text.assemble((f"{name:<8} | ", style), text), soft_wrap=True)
        except (SystemExit, OSError):  # rich ends the thread at a broken pipe; ours must go on reading
            self._closed = True


def _style(process: str) -> str:
    kind, _, number = process.partition(" ")
    if kind != "worker":
        return _SERVER_STYLE
    return _WORKER_STYLES[int(number) % len(_WORKER_STYLES)]
