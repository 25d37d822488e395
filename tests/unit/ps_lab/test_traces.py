"""Traces of several processes become one file, in which each has its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ps_lab.traces import put_together
from ps_wire.errors import UsageError


def written(folder: Path, pid: int, name: str) -> None:
    named = {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
    events = [named, {"name": "reduce", "ph": "X", "pid": pid, "tid": 1, "ts": 5.0, "dur": 2.0}]
    (folder / f"{pid}.json").write_text(json.dumps({"traceEvents": events}))


def test_all_processes_are_in_one_trace_by_their_names(tmp_path: Path) -> None:
    for pid, name in ((7, "worker 0 rank 1"), (8, "server 0"), (9, "worker 0 rank 0")):
        written(tmp_path, pid, name)

    events = put_together(tmp_path)["traceEvents"]

    assert [it["args"]["name"] for it in events if it["ph"] == "M"] == [
        "server 0",
        "worker 0 rank 0",
        "worker 0 rank 1",
    ]
    assert [it["pid"] for it in events if it["ph"] == "X"] == [8, 9, 7]


def test_what_is_no_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no traces: PS_TRACE="):
        put_together(tmp_path)
    (tmp_path / "figures.json").write_text("[1]")
    with pytest.raises(UsageError, match=r"figures\.json is no trace"):
        put_together(tmp_path)
