"""The table of a round-trip bench, and the progress that is shown while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ps_lab.bench import limit
from ps_lab.bench.roundtrip import PROJECT, Outcome, Watcher
from ps_lab.bench.setup import Setup


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
            tick=lambda: None,  # the bar draws itself
            line=lambda process, text: console.print(f"{process} | {text}", markup=False, soft_wrap=True),
        )


def roundtrip_table(outcome: Outcome) -> Table:
    """A row per party."""
    setup = outcome.setup
    table = Table(
        title=_title(setup),
        title_justify="left",
        caption="a round: every worker pushes every gradient and has pulled every new weight; project / it: "
        "ratio of medians; GB/s each way and CPU seconds per GB: of all workers and all processes of the row",
        caption_justify="left",
    )
    table.add_column("")
    for header in ("median s", "p90 s", "project / it", "GB/s each way", "CPU s / GB"):
        table.add_column(header, justify="right")
    for name in outcome.rounds:
        summary, cpu_s = outcome.summary(name), outcome.cpu_s_per_gb(name)
        table.add_row(
            f"the machine's limit ({_limit_text(setup)})" if name == limit.NAME else name,
            f"{summary.median:.4f}",
            f"{summary.p90:.4f}",
            "" if name == PROJECT else f"{outcome.ratio(name):.2f}",
            f"{setup.bytes_per_round / 2 / summary.median / 1e9:.2f}",
            "" if cpu_s is None else f"{cpu_s:.2f}",
        )
    return table


def _title(setup: Setup) -> str:
    carrier = setup.carrier
    if setup.asked_carrier != carrier:
        carrier += f" (asked for: {setup.asked_carrier})"
    return (
        f"{setup.model}: {setup.parameters:,} parameters in {len(setup.shapes)} tensors, "
        f"{setup.weight_bytes / 1e6:,.1f} MB; servers {setup.num_servers}, workers {setup.num_workers}, "
        f"{setup.consistency}, {setup.optimizer}, {carrier}, {setup.rounds} rounds"
    )


def _limit_text(setup: Setup) -> str:
    if setup.carrier == "shm":
        return "sum and optimizer" if setup.consistency == "bsp" else "optimizer and copy"
    return "Unix sockets" if setup.carrier == "uds" else "TCP sockets"
