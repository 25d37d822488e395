"""Traces of several processes of one machine, put together into one file: a row for each process.

It must not know what is traced.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ps_wire.errors import UsageError


def put_together(folder: Path) -> dict[str, Any]:
    """The trace of all processes that have written theirs into a folder; servers first, then by name.

    Raises:
        UsageError: there are none, or a file is no trace; it is named.
    """
    found = [_events_of(path) for path in sorted(folder.glob("*.json"))]
    if not found:
        raise UsageError(
            f"{folder} has no traces: PS_TRACE={folder} has servers and workers write them when they end"
        )
    return {"traceEvents": [event for events in sorted(found, key=_name_of) for event in events]}


def _events_of(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        found = None
    events = found.get("traceEvents") if isinstance(found, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise UsageError(f"{path} is no trace: take it out of the folder")
    return events


def _name_of(events: list[dict[str, Any]]) -> str:
    for event in events:
        if event.get("name") == "process_name":
            return str(event.get("args", {}).get("name", ""))
    return ""
