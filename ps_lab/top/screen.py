"""A view on a terminal: lanes and staleness of each job, its last events, and a table of servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ps_lab.status.report import bytes_text, range_text, seconds_text
from ps_lab.top.view import JobView, Lane, ShardView, View
from ps_wire.text import one_line

BARS = "▁▂▃▄▅▆▇█"
POINTS = 60  # of a sparkline
TRACK = 12  # characters of a lane
MOST_LANES = 32  # of a job; those furthest behind
MOST_EVENTS = 6


def drawn(view: View) -> Iterator[RenderableType]:
    """Draws what there is to see, from top to bottom."""
    yield Text(one_line(view.source), style="dim")
    if view.trouble:
        yield Text(one_line(view.trouble), style="bold red")
    if not view.jobs:
        yield Text("no jobs")
    for job in view.jobs:
        yield from _job(job)
    if view.shards:
        yield _shards(view.shards)


def sparkline(values: Sequence[float]) -> str:
    """The last values as bars, from zero to the largest of them."""
    shown = values[-POINTS:]
    top = max(shown, default=0.0)
    if not top > 0:
        return BARS[0] * len(shown)
    return "".join(BARS[min(int(value / top * len(BARS)), len(BARS) - 1)] for value in shown)


def track(clock: int, slowest: int, fastest: int) -> str:
    """Where a worker is between the slowest and the fastest one."""
    place = (clock - slowest) * (TRACK - 1) // max(fastest - slowest, 1)
    return "─" * place + "●" + "·" * (TRACK - 1 - place)


def _job(job: JobView) -> Iterator[RenderableType]:
    parts = [
        f"{one_line(job.name)}  {one_line(job.consistency)}  {job.state}",
        f"{len(job.lanes)} of {job.wanted} workers" if job.wanted else "",
        f"{job.updates_per_s:,.1f} updates/s" if job.updates_per_s is not None else "",
        f"{job.samples_per_s:,.0f} samples/s" if job.samples_per_s is not None else "",
        f"snapshot {seconds_text(job.snapshot.age_s)} s ago" if job.snapshot else "",
    ]
    yield Text("  ".join(filter(None, parts)), style="bold")
    if job.staleness:
        figures = f"  now {job.staleness[-1]:.2f}, largest {job.worst}"
        yield Text(f"staleness {sparkline(job.staleness)}{figures}")
    if job.lanes:
        yield _lanes(job.lanes)
    for line in job.events[-MOST_EVENTS:]:
        yield Text(one_line(line), style="dim", no_wrap=True, overflow="ellipsis")


def _lanes(lanes: Sequence[Lane]) -> Table:
    clocks = [lane.clock for lane in lanes]
    slowest, fastest = min(clocks), max(clocks)
    shown = sorted(sorted(lanes, key=lambda lane: lane.clock)[:MOST_LANES], key=lambda lane: lane.worker)
    table = _table(("worker", ""), ("clock", "gap", "steps/s", "waits", "loss", "lease"), ("",))
    for lane in shown:
        table.add_row(
            str(lane.worker),
            track(lane.clock, slowest, fastest),
            str(lane.clock),
            str(lane.gap),
            "" if lane.steps_per_s is None else f"{lane.steps_per_s:.1f}",
            "" if lane.waits_share is None else f"{min(lane.waits_share, 1.0):.0%}",
            "" if lane.loss is None else f"{lane.loss:.4g}",
            "" if lane.lease_left_s is None else f"{lane.lease_left_s:.0f} s",
            one_line(lane.waits or ("" if lane.state == "running" else lane.state)),
        )
    if len(shown) < len(lanes):
        table.add_row("…", f"{len(lanes) - len(shown)} more", *[""] * 7)
    return table


def _shards(shards: Sequence[ShardView]) -> Table:
    table = _table(("server",), ("versions", "in/s", "out/s", "queued", "peers", "memory", "refused"), ())
    for it in shards:
        shard = it.shard
        limit = f" of {bytes_text(shard.memory_limit_bytes)}" if shard.memory_limit_bytes else ""
        table.add_row(
            one_line(f"{shard.shard} {shard.address}"),
            range_text(shard.min_version, shard.max_version),
            *("" if rate is None else bytes_text(int(rate)) for rate in (it.in_per_s, it.out_per_s)),
            bytes_text(shard.queued_bytes),
            str(shard.connections),
            bytes_text(shard.memory_bytes) + limit,
            str(shard.refused_frames),
        )
    return table


def _table(left: Sequence[str], right: Sequence[str], rest: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    for name in rest:
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    return table
