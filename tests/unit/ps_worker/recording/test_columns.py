"""The record of a step: what is written is read back, and what is not one is refused by name."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.errors import UsageError
from ps_worker.recording.columns import (
    COLUMNS,
    MAX_LINE_BYTES,
    MAX_METRICS,
    MAX_NAME,
    RecordHeader,
    StepRecord,
    decode,
    decode_header,
    encode,
    encode_header,
    file_name,
)

HEADER = RecordHeader(
    unix_s=1.5e9,
    job="digits",
    worker=1,
    incarnation=7,
    consistency="ssp:3",
    num_workers=4,
    host="here",
    versions={"torch": "2.13.0"},
)


def made_record(**given):
    values = {
        "step": 3,
        "clock": 3,
        "version_read": 10,
        "version_applied": 12,
        "tau": 2,
        "gap": 1,
        "started_s": 1.0,
        "ended_s": 1.5,
        "compute_s": 0.3,
        "push_s": 0.1,
        "gate_s": 0.0,
        "pull_s": 0.1,
        "bytes_up": 1000,
        "bytes_down": 1000,
        "samples": 16,
    }
    return StepRecord(**values | given)


def test_every_field_is_a_documented_column():
    """Fields and columns are the same names in the same order, each with a meaning."""
    assert [field.name for field in dataclasses.fields(StepRecord)] == [column.name for column in COLUMNS]
    assert all(column.meaning for column in COLUMNS)


counts = st.integers(0, 2**53)
seconds = st.floats(0, 1e9, allow_nan=False)
numbers = st.floats(allow_nan=False)
metrics = st.dictionaries(st.text(min_size=1, max_size=MAX_NAME), numbers, max_size=5)


@given(
    read=st.integers(0, 2**40),
    tau=st.none() | st.integers(0, 2**40),
    gap=st.none() | counts,
    start=seconds,
    took=seconds,
    loss=st.none() | numbers,
    logged=metrics,
    dropped=counts,
)
def test_what_is_written_is_read_back(read, tau, gap, start, took, loss, logged, dropped):
    """Every record survives its line, infinite losses included, and a line is one line."""
    record = made_record(
        version_read=read,
        tau=tau,
        version_applied=None if tau is None else read + tau,
        gap=gap,
        started_s=start,
        ended_s=start + took,
        loss=loss,
        metrics=logged,
        dropped=dropped,
    )
    line = encode(record)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert decode(line) == record


def test_a_loss_that_is_no_number_is_kept():
    """A run that diverges is shown, so NaN has to come through a format that has none."""
    record = decode(encode(made_record(loss=math.nan, metrics={"worst": -math.inf, "other": math.nan})))
    assert math.isnan(record.loss)
    assert record.metrics["worst"] == -math.inf
    assert math.isnan(record.metrics["other"])
    assert "NaN" not in encode(record)


def test_a_header_is_read_back_and_names_its_file():
    assert decode_header(encode_header(HEADER)) == HEADER
    assert file_name(HEADER) == "digits.worker-1.7.jsonl"
    assert file_name(dataclasses.replace(HEADER, incarnation=8)) != file_name(HEADER)


def test_the_largest_record_fits_into_a_line():
    names = [f"{index:03}" + "\U0001f600" * (MAX_NAME - 3) for index in range(MAX_METRICS)]
    line = encode(made_record(metrics=dict.fromkeys(names, -1.2345678901234567e-300)))
    assert len(line.encode()) <= MAX_LINE_BYTES
    assert decode(line).metrics.keys() == set(names)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"clock": -1}, "clock"),
        ({"bytes_up": 2**53 + 1}, "bytes_up"),
        ({"gate_s": math.nan}, "gate_s"),
        ({"pull_s": math.inf}, "pull_s"),
        ({"ended_s": 0.5}, "ended_s"),
        ({"tau": 3}, "tau"),
        ({"tau": None}, "tau"),
        ({"version_read": None}, "tau"),
        ({"metrics": {"": 1.0}}, "metrics"),
        ({"metrics": {"x" * (MAX_NAME + 1): 1.0}}, "metrics"),
        ({"metrics": {str(index): 0.0 for index in range(MAX_METRICS + 1)}}, "metrics"),
    ],
)
def test_a_value_that_makes_no_sense_names_its_column(change, named):
    with pytest.raises(UsageError, match=named) as refused:
        made_record(**change)
    assert refused.value.facts["column"] == named


def changed(**values):
    return json.dumps({**json.loads(encode(made_record())), **values})


def without(name):
    return json.dumps({key: value for key, value in json.loads(encode(made_record())).items() if key != name})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (changed(colour=1), "unknown column 'colour'"),
        (without("tau"), "'tau' is missing"),
        (changed(step="3"), "'step' cannot be '3'"),
        (changed(step=1.5), "'step'"),
        (changed(step=True), "'step'"),
        (changed(loss="much"), "'loss'"),
        (changed(loss=["nan"]), "'loss'"),
        (changed(metrics={"x": "many"}), "metrics: x"),
        (changed(metrics={"x": None}), "metrics: x"),
        (changed(metrics=[]), "'metrics'"),
        ("[1]", "no JSON object"),
        ("{", "no JSON"),
        ("[" * 50_000, "no JSON"),
        ('{"step": NaN}', "NaN is no JSON"),
        ("x" * (MAX_LINE_BYTES + 1), "at most"),
    ],
)
@pytest.mark.usefixtures("uncollected")
def test_a_line_that_is_no_record_is_refused_by_name(line, says):
    with pytest.raises(UsageError, match=says):
        decode(line)


def test_columns_with_a_default_may_be_left_out():
    for name in ("loss", "metrics", "dropped", "abstained", "retried"):
        assert decode(without(name)) == made_record()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "its format is 2"),
        ({"worker": -1}, "worker"),
        ({"num_workers": 0}, "num_workers"),
        ({"unix_s": -1}, "unix_s"),
        ({"job": "a/b"}, "job name"),
        ({"host": "h" * 2000}, "host"),
        ({"versions": {"torch": 2}}, "torch"),
        ({"versions": {str(index): "1" for index in range(MAX_METRICS + 1)}}, "versions"),
        ({"colour": 1}, "unknown column 'colour'"),
    ],
)
def test_a_first_line_that_is_no_header_is_refused_by_name(change, says):
    with pytest.raises(UsageError, match=says):
        decode_header(json.dumps({**json.loads(encode_header(HEADER)), **change}))
