"""Listeners to a bench's progress, and the one that shows it: a bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Whoever shows how a bench gets on.

    Attributes:
        phase: called with what begins now, and how many rounds it has (0: nobody knows).
        advance: called after each round.
        line: takes a failed process's name and a line of its output.
    """

    phase: Callable[[str, int], None]
    advance: Callable[[], None]
    line: Callable[[str, str], None]


@contextmanager
def showing(console: Console) -> Iterator[Watcher]:
    """Shows a bar on a terminal while it is open, and the last lines of what fails anywhere."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        task = progress.add_task("starting", total=None)
        yield Watcher(
            phase=lambda what, rounds: progress.reset(
                task, description=what, total=float(rounds) if rounds else None
            ),
            advance=lambda: progress.advance(task),
            line=lambda process, text: console.print(f"{process} | {text}", markup=False, soft_wrap=True),
        )
