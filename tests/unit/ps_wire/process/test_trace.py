"""Spans of a process: off they leave nothing, on they are bounded and end in one file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ps_wire.errors import UsageError
from ps_wire.process import trace
from ps_wire.process.trace import SpanRecorder

PROGRAM = """
import os
from ps_wire.process import trace
trace.start("server 7")
with trace.span("mean"):
    pass
assert trace.traced("reply")(lambda a, b: a - b)(5, b=3) == 2
if os.fork() == 0:
    raise SystemExit  # runs what is registered for the end, too
os.wait()
"""


def spans(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X"]


def names(events: list[dict[str, Any]], what: str) -> dict[int, str]:
    return {
        event.get("tid", event["pid"]): event["args"]["name"] for event in events if event["name"] == what
    }


def test_without_a_recorder_all_spans_are_one_object_that_does_nothing() -> None:
    assert trace.span("a") is trace.span("b")
    with trace.span("a"), trace.span("a"):
        pass


def test_a_span_has_its_threads_row_and_lasts_as_long_as_its_block() -> None:
    recorder = SpanRecorder("server 0")
    with recorder.span("outer"), recorder.span("inner"):
        pass
    thread = threading.Thread(target=lambda: recorder.add("read", 1_000, 4_500), name="ps-data")
    thread.start()
    thread.join()
    events = recorder.events()
    assert names(events, "process_name") == {os.getpid(): "server 0"}
    inner, outer, read = spans(events)
    assert (inner["name"], outer["name"]) == ("inner", "outer")
    assert inner["tid"] == outer["tid"] == threading.get_native_id()
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    assert (read["ts"], read["dur"]) == (1.0, 3.5)
    assert names(events, "thread_name")[read["tid"]] == "ps-data"


def test_a_traced_function_is_the_same_function_where_tracing_is_off() -> None:
    @trace.traced("sum")
    def add(first: int, *, second: int) -> int:
        """Adds."""
        return first + second

    assert add(1, second=2) == 3
    assert (add.__name__, add.__doc__) == ("add", "Adds.")


def test_a_block_that_raises_is_recorded_and_raises() -> None:
    recorder = SpanRecorder("worker 0")
    with pytest.raises(KeyError), recorder.span("push"):
        raise KeyError
    assert [event["name"] for event in spans(recorder.events())] == ["push"]


def test_only_the_newest_spans_are_kept() -> None:
    recorder = SpanRecorder("server 0", max_spans=3)
    for number in range(10):
        recorder.add(str(number), number, number)
    assert [event["name"] for event in spans(recorder.events())] == ["7", "8", "9"]


def test_a_process_writes_its_file_when_it_ends_and_a_forked_child_does_not(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ | {trace.VARIABLE: str(tmp_path)}, check=True
    )
    (written,) = tmp_path.iterdir()
    events = json.loads(written.read_text())["traceEvents"]
    assert set(names(events, "process_name").values()) == {"server 7"}
    assert [event["name"] for event in spans(events)] == ["mean", "reply"]


def test_without_the_variable_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(trace.VARIABLE, raising=False)
    trace.start("worker 0")
    assert trace.span("a") is trace.span("b")


def test_a_folder_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(trace.VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(UsageError, match=r"PS_TRACE=.*missing"):
        trace.start("worker 0")
