"""A picture of where a traced round's time goes: a bar per thread, a colour per kind of work.

A bar holds each span's own time, without that of the spans inside it, as the mean over the rounds; what a bar
lacks to the length of a round is time in which its thread waited, or did what no span covers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from ps_lab.bench.traced import Event, rounds_of
from ps_wire.errors import UsageError

# Told apart by the colour-blind, too (Okabe and Ito), then lighter ones.
COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#7f7f7f"),
    *("#a6cee3", "#fdd0a2", "#b2df8a", "#e5c494", "#cab2d6", "#8c6d31"),
)
CAPTION = (
    "own time of spans, mean over the rounds; where a bar is blank up to the dashed line, its thread idles"
)
OTHER, SMALL = "other", 0.004  # kinds that take less of a round are one
WIDTH, LEFT, TOP, ROW, BAR, GAP = 900, 190, 62, 24, 16, 10  # pixels
PLOT, LEGEND = WIDTH - LEFT - 30, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTime:
    """A thread's time in a round, on average, by kind of work.

    Attributes:
        process: its name.
        thread: its name, with a number where the process has several of that name.
        own_ms: by the name of spans, without what is inside others.
    """

    process: str
    thread: str
    own_ms: Mapping[str, float]


def read_trace(path: Path) -> dict[str, Any]:
    """The trace of `bench roundtrip --trace`.

    Raises:
        UsageError: the file cannot be read, or holds something else.
    """
    try:
        trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if rounds_of(trace) and "carrier" in trace["otherData"]:
            return trace
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, LookupError, TypeError):
        pass
    raise UsageError(f"{path} is no trace of ps-lab bench roundtrip --trace")


def thread_times(trace: Mapping[str, Any]) -> list[ThreadTime]:
    """All threads that did something, servers first."""
    events: Sequence[Event] = trace["traceEvents"]
    rounds = [(event["ts"], event["ts"] + event["dur"]) for event in rounds_of(trace)]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    numbers: Counter[tuple[str, str]] = Counter()
    found = []
    for pid, tid in sorted(threads, key=lambda row: (processes[row[0]], threads[row], row)):
        spans = [
            event for event in events if (event["pid"], event.get("tid"), event["ph"]) == (pid, tid, "X")
        ]
        total: Counter[str] = Counter()
        for begin_us, end_us in rounds:
            total.update(_own_us(spans, begin_us, end_us))
        name = (processes[pid], threads[pid, tid])
        numbers[name] += 1
        several = [threads[row] for row in threads if row[0] == pid].count(name[1]) > 1
        found.append(
            ThreadTime(
                process=name[0],
                thread=f"{name[1]} {numbers[name]}" if several else name[1],
                own_ms={kind: spent / len(rounds) / 1e3 for kind, spent in total.items()},
            )
        )
    return [thread for thread in found if sum(thread.own_ms.values()) > 0]


def _own_us(spans: Sequence[Event], begin_us: float, end_us: float) -> Counter[str]:
    """Time of one thread's spans in a window, each without the spans inside it; microseconds."""
    own: Counter[str] = Counter()
    open_spans: list[tuple[str, float]] = []  # those that the next one may lie in: name, end
    clipped = [
        (max(span["ts"], begin_us), min(span["ts"] + span["dur"], end_us), span["name"]) for span in spans
    ]
    for start, end, name in sorted(clipped, key=lambda item: (item[0], -item[1])):
        if start >= end:
            continue
        while open_spans and open_spans[-1][1] <= start:
            open_spans.pop()
        if open_spans:
            outer, outer_end = open_spans[-1]
            own[outer] -= min(end, outer_end) - start
        own[name] += end - start
        open_spans.append((name, end))
    return own


def draw(trace: Mapping[str, Any]) -> str:
    """The picture as SVG."""
    rounds = rounds_of(trace)
    round_ms = sum(event["dur"] for event in rounds) / len(rounds) / 1e3
    threads = [_with_small_ones_together(thread, round_ms) for thread in thread_times(trace)]
    colours = _colours(threads)
    scale = PLOT / round_ms
    facts = trace["otherData"]
    title = (
        f"{facts['model']}, {facts['carrier']}, {facts['consistency']}, {facts['optimizer']}, servers "
        f"{facts['num_servers']}, workers {facts['num_workers']}: a round of {round_ms:.1f} ms, traced"
    )
    lines = [_text(10, 22, title, size=15), _text(10, 42, CAPTION, size=11)]
    y, process = TOP, ""
    for thread in threads:
        y += GAP * (thread.process != process)
        process = thread.process
        lines += _bar(thread, y, scale, colours)
        y += ROW
    lines += _axis(y, round_ms, scale)
    y += ROW + GAP
    for index, (kind, colour) in enumerate(colours.items()):
        left, top = 10 + index % LEGEND * 176, y + index // LEGEND * 20
        lines.append(f'<rect x="{left}" y="{top}" width="12" height="12" fill="{colour}"/>')
        lines.append(_text(left + 17, top + 10, kind, size=11))
    height = y + -(-len(colours) // LEGEND) * 20 + 6
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif"><rect width="100%" height="100%" fill="#fff"/>'
    )
    return "\n".join([head, *lines, "</svg>\n"])


def _with_small_ones_together(thread: ThreadTime, round_ms: float) -> ThreadTime:
    own_ms: dict[str, float] = {}
    for kind, spent_ms in thread.own_ms.items():
        shown = kind if spent_ms >= SMALL * round_ms else OTHER
        own_ms[shown] = own_ms.get(shown, 0.0) + spent_ms
    return replace(thread, own_ms=own_ms)


def _colours(threads: Sequence[ThreadTime]) -> dict[str, str]:
    """Of each kind, in the order of the bars: what takes most first, waiting and the rest last."""
    total: Counter[str] = Counter()
    for thread in threads:
        total.update(thread.own_ms)
    waits = [kind for kind, _ in total.most_common() if kind.startswith("wait")]
    works = [kind for kind, _ in total.most_common() if kind not in (*waits, OTHER)]
    found = {kind: COLOURS[index % len(COLOURS)] for index, kind in enumerate(works)}
    found |= {OTHER: "#525252"} if OTHER in total else {}
    return found | dict.fromkeys(waits, "#e4e4e4")


def _axis(y: int, round_ms: float, scale: float) -> list[str]:
    power = 10.0 ** math.floor(math.log10(round_ms / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= round_ms / 8)
    lines = [f'<path d="M{LEFT + round_ms * scale:.1f} {TOP}V{y}" stroke="#000" stroke-dasharray="4 3"/>']
    for index in range(int(round_ms / step) + 1):
        x = LEFT + index * step * scale
        lines.append(f'<path d="M{x:.1f} {y}v5" stroke="#000"/>')
        lines.append(_text(x, y + 17, f"{index * step:g}" + " ms" * (index == 0), size=11, anchor="middle"))
    return lines


def _bar(thread: ThreadTime, y: int, scale: float, colours: Mapping[str, str]) -> list[str]:
    lines = [_text(LEFT - 8, y + 12, f"{thread.process}, {thread.thread}", size=11, anchor="end")]
    x = float(LEFT)
    for kind, colour in colours.items():
        spent_ms = thread.own_ms.get(kind, 0.0)
        width = spent_ms * scale
        if width < 0.05:
            continue
        lines.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}">'
            f"<title>{escape(kind)}: {spent_ms:.2f} ms</title></rect>"
        )
        x += width
    return lines


def _text(x: float, y: float, text: str, *, size: int, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
