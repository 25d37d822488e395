"""Traces of several processes become one, and a picture of whose time went where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from ps_lab.bench import picture, traced
from ps_lab.errors import BenchFailed
from ps_wire.errors import UsageError
from ps_wire.process.trace import SpanRecorder

FACTS = {
    "model": "tiny<1>",
    "carrier": "shm",
    "consistency": "bsp",
    "optimizer": "sgd",
    "num_servers": 1,
    "num_workers": 1,
}
# begin and end in milliseconds; two rounds, 10..20 and 30..40, of which the server works in both
SERVER = [("stage", 12, 18), ("mean", 13, 15), ("optimizer", 15, 17), ("stage", 31, 33), ("stage", 21, 29)]
WORKER = [("wait", 5, 45)]


def events(pid: int, process: str, spans: list[tuple[str, int, int]]) -> list[dict[str, Any]]:
    recorder = SpanRecorder(process)
    for name, begin_ms, end_ms in spans:
        recorder.add(name, begin_ms * 1_000_000, end_ms * 1_000_000)
    return [event | {"pid": pid} for event in recorder.events()]


@pytest.fixture(name="trace")
def _trace() -> dict[str, Any]:
    written = events(11, "server 0", SERVER) + events(12, "worker 0", WORKER)
    return traced.put_together(written, [(0.010, 0.020), (0.030, 0.040)], FACTS)


def test_a_trace_holds_what_lies_in_a_round_and_begins_with_the_first(trace: dict[str, Any]) -> None:
    assert json.loads(json.dumps(trace)) == trace
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(event["ts"], event["dur"]) for event in traced.rounds_of(trace)] == [
        pytest.approx((0.0, 10_000.0)),
        pytest.approx((20_000.0, 10_000.0)),
    ]
    of_server = [(event["name"], event["ts"]) for event in spans if event["pid"] == 11]
    assert of_server == [
        ("stage", pytest.approx(2_000.0)),
        ("mean", pytest.approx(3_000.0)),
        ("optimizer", pytest.approx(5_000.0)),
        ("stage", pytest.approx(21_000.0)),
    ]
    assert traced.round_s(trace) == pytest.approx(0.010)


def test_a_thread_that_did_nothing_in_the_rounds_has_no_row() -> None:
    trace = traced.put_together(events(11, "server 0", [("stage", 21, 29)]), [(0.010, 0.020)], FACTS)
    assert not [event for event in trace["traceEvents"] if event["name"] == "thread_name"]
    assert picture.thread_times(trace) == []


def test_own_time_leaves_out_inner_spans_and_what_is_between_rounds(trace: dict[str, Any]) -> None:
    server, worker = picture.thread_times(trace)
    assert (server.process, worker.process) == ("server 0", "worker 0")
    assert server.own_ms == pytest.approx({"stage": (2 + 2) / 2, "mean": 2 / 2, "optimizer": 2 / 2})
    assert worker.own_ms == pytest.approx({"wait": 10.0})  # clipped to the rounds


def test_threads_of_one_name_are_numbered() -> None:
    twice = [event | {"tid": tid} for tid in (1, 2) for event in events(11, "server 0", [("mean", 10, 12)])]
    trace = traced.put_together(twice, [(0.010, 0.020)], FACTS)
    first, second = [thread.thread for thread in picture.thread_times(trace)]
    assert (first[-2:], second[-2:]) == (" 1", " 2")


def test_a_picture_is_wellformed_and_names_all_that_took_time(trace: dict[str, Any]) -> None:
    root = ET.fromstring(picture.draw(trace))  # our own text
    text = " ".join(root.itertext())
    for said in ("tiny<1>", "server 0", "worker 0", "stage", "mean", "optimizer", "wait", "10.0 ms"):
        assert said in text


def test_a_process_without_a_trace_is_counted(tmp_path: Path) -> None:
    (tmp_path / "11.json").write_text(json.dumps({"traceEvents": events(11, "server 0", SERVER)}))
    assert len(traced.read(tmp_path, processes=1)) == 2 + len(SERVER)
    with pytest.raises(BenchFailed, match="2 of 3 processes left no trace"):
        traced.read(tmp_path, processes=3)


@pytest.mark.parametrize("text", [None, "", "[]", '{"traceEvents": []}', '{"traceEvents": [{}]}', "\xff"])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "trace.json"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"trace\.json"):
        picture.read_trace(path)


def test_a_trace_is_read_as_it_was_written(tmp_path: Path, trace: dict[str, Any]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    assert picture.read_trace(path) == trace


def test_in_a_picture_what_takes_little_is_one_kind_and_waiting_is_grey() -> None:
    written = events(11, "server 0", [("mean", 10, 19)]) + events(
        12, "worker 0", [("wait for weights", 11, 20)]
    )
    little = [
        event | {"name": name, "dur": 10.0}
        for name, event in zip(("ack", "reply"), events(11, "server 0", [("-", 19, 20)] * 2)[2:], strict=True)
    ]
    text = picture.draw(traced.put_together(written + little, [(0.010, 0.020)], FACTS))
    assert "other" in text
    assert "ack" not in text
    (wait,) = [
        rect for rect in ET.fromstring(text).iter() if "wait for weights" in (rect.findtext("*") or "")
    ]
    assert wait.get("fill") == "#e4e4e4"
