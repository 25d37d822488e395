"""A few rounds of the project with its trace on, put together into one Chrome trace of all processes.

A run of its own, after the one that is measured and with nobody beside it, so that tracing
touches no figure.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ps_lab.bench import roundtrip
from ps_lab.bench.parties import WARM_UP_ROUNDS
from ps_lab.bench.setup import Setup
from ps_lab.bench.watcher import Watcher
from ps_lab.errors import BenchFailed
from ps_wire.process.trace import VARIABLE

ROUNDS = 5
ROUND = "round"  # the spans that say when the rounds were, in a row of the bench's own
BENCH_PID = 0

Event = dict[str, Any]


def record(setup: Setup, watcher: Watcher, *, carrier: str) -> dict[str, Any]:
    """Runs `ROUNDS` rounds, after two to warm up. Call it in the main thread, as `roundtrip.measure`.

    Args:
        setup: of the run before.
        watcher: is told how it gets on.
        carrier: that carried there.

    Returns:
        A Chrome trace: a process row per server and worker, a thread row per thread, and the rounds.

    Raises:
        BenchFailed: a process hangs, or has left no trace.
        ProcessFailed: a process ended.
        Interrupted: a signal came.
    """
    with tempfile.TemporaryDirectory(prefix="ps-trace-") as folder:
        watcher.phase("starting again, with the trace on", 0)
        with roundtrip.project_session(setup, watcher, {VARIABLE: folder}) as session:
            party = roundtrip.start_project(session, setup)
            session.wait_ready(limit_s=setup.limit_s)
            watcher.phase("traced rounds", WARM_UP_ROUNDS + ROUNDS)
            windows = []
            for _ in range(WARM_UP_ROUNDS + ROUNDS):
                windows.append(party.window())
                watcher.advance()
        written = read(Path(folder), processes=len(party.pids))
    facts = {"model": setup.model, "bytes": setup.weight_bytes, **setup.to_json(carrier), "rounds": ROUNDS}
    return put_together(written, windows[WARM_UP_ROUNDS:], facts)


def round_s(trace: Mapping[str, Any]) -> float:
    """The median of its rounds; tracing is a part of it."""
    return float(statistics.median(event["dur"] for event in rounds_of(trace))) / 1e6


def rounds_of(trace: Mapping[str, Any]) -> list[Event]:
    """The spans of its rounds."""
    return [event for event in trace["traceEvents"] if event["pid"] == BENCH_PID and event["ph"] == "X"]


def read(folder: Path, *, processes: int) -> list[Event]:
    """The events that so many processes have written.

    Raises:
        BenchFailed: a process has written none, as when it was killed.
    """
    paths = sorted(folder.glob("*.json"))
    if len(paths) != processes:
        raise BenchFailed(
            f"{processes - len(paths)} of {processes} processes left no trace: they were killed"
        )
    return [event for path in paths for event in json.loads(path.read_text())["traceEvents"]]


def put_together(
    events: Sequence[Event], windows: Sequence[tuple[float, float]], facts: Mapping[str, object]
) -> dict[str, Any]:
    """One trace of what happened in the rounds.

    Args:
        events: of all processes.
        windows: begin and end of each round, in seconds of the monotonic clock.
        facts: about the run, for whoever reads the file.
    """
    start_us = 1e6 * windows[0][0]
    rounds = [
        {
            "name": ROUND,
            "ph": "X",
            "pid": BENCH_PID,
            "tid": 0,
            "ts": 1e6 * begin_s - start_us,
            "dur": 1e6 * (end_s - begin_s),
        }
        for begin_s, end_s in windows
    ]
    moved = [event | {"ts": event["ts"] - start_us} for event in events if event["ph"] == "X"]
    within = [event for event in moved if any(_overlap(event, window) for window in rounds)]
    seen = {(event["pid"], event["tid"]) for event in within}
    names = [
        event
        for event in events
        if event["name"] == "process_name"
        or (event["name"] == "thread_name" and (event["pid"], event["tid"]) in seen)
    ]
    bench: Event = {"name": "process_name", "ph": "M", "pid": BENCH_PID, "args": {"name": "bench"}}
    return {"traceEvents": [bench, *names, *rounds, *within], "otherData": dict(facts)}


def _overlap(event: Event, window: Event) -> bool:
    begin_us: float = max(event["ts"], window["ts"])
    end_us: float = min(event["ts"] + event["dur"], window["ts"] + window["dur"])
    return begin_us < end_us
