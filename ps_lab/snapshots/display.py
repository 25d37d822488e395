"""Snapshots as people see them: a table of them, and how one gets on that is being taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ps_lab.snapshots.snapshots import Found
from ps_wire.text import one_line


class Word(Protocol):
    """A word for how far something is."""

    phase: str
    bytes: int
    total_bytes: int


AnyWord = TypeVar("AnyWord", bound=Word)


def table(found: list[Found]) -> Table:
    """One row for each."""
    shown = Table(title="snapshots")
    for column in ("job", "snapshot", "step", "workers", "shards", "bytes", "created"):
        shown.add_column(column, justify="right" if column in ("step", "shards", "bytes") else "left")
    for one in found:
        known = one.manifest
        if known is None:
            shown.add_row(one.job, one.name, "", "", "", "", Text(one_line(one.fault), style="red"))
            continue
        workers = "ended" if known.ended else ",".join(str(worker) for worker in sorted(known.workers))
        shown.add_row(
            one.job,
            one.name,
            str(known.step),
            workers,
            str(known.num_shards),
            str(known.total_bytes),
            one_line(known.created),
        )
    return shown


def show(words: Iterator[AnyWord], console: Console) -> AnyWord:
    """A progress bar on a terminal, lines elsewhere; returns the last word."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    last: AnyWord | None = None
    said = ""
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("beginning", total=None)
        for word in words:
            progress.update(
                task, description=one_line(word.phase), completed=word.bytes, total=word.total_bytes or None
            )
            if word.phase != said and not console.is_terminal:
                said = word.phase
                console.print(one_line(said))
            last = word
    assert last is not None, "the coordinator's last word is `done`"
    return last
