"""The record of one step: its columns, and the lines of a file of records.

A file is of one incarnation of one worker. Its first line is the header, each further one a step; a line is
a JSON object. JSON has no NaN and no infinity: these are the texts "nan", "inf" and "-inf". A process that
was killed leaves a last line without a line break, which a reader drops.

This file knows neither torch nor grpc, nor where files lie. Invariants: what is decoded was checked as what
is built; an unknown or missing column is refused by its name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any

from ps_wire.errors import UsageError
from ps_wire.spec.address import check_job_name

FORMAT = 1
MAX_LINE_BYTES = 64 << 10  # a line with all metrics that are allowed has at most 46 KiB
MAX_METRICS = 64  # as many as the coordinator takes of a worker
MAX_NAME = 100  # characters, of a metric
MAX_TEXT = 1000  # characters, of any text of a header
MAX_COUNT = 2**53  # whole numbers beyond it are not exact in every reader of JSON

_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column as the documentation has it.

    Attributes:
        name: of the field of `StepRecord`.
        unit: of its number; "" where it has none.
        meaning: in one sentence.
        types: of its value.
    """

    name: str
    unit: str
    meaning: str
    types: tuple[type, ...]


_COUNT = (int,)
_SECONDS = (int, float)

_MAYBE_COUNT = (int, NoneType)
_MAYBE_SECONDS = (int, float, NoneType)
_ROWS: tuple[tuple[str, str, str, tuple[type, ...]], ...] = (
    ("step", "steps", "steps that this worker had taken before this one", _COUNT),
    (
        "clock",
        "steps",
        "the clock of its push: under `bsp:backup=B` it jumps where the worker was passed over",
        _COUNT,
    ),
    ("version_read", "versions", "of the weights that the gradient was computed on", _MAYBE_COUNT),
    ("version_applied", "versions", "at which the push was applied, as its ACK says", _MAYBE_COUNT),
    ("tau", "updates", "version staleness: `version_applied - version_read`", _MAYBE_COUNT),
    ("gap", "steps", "clock gap that the push made: the committed one, at most s + 1", _MAYBE_COUNT),
    ("started_s", "s", "when the step began, since the process began to record", _SECONDS),
    ("ended_s", "s", "when its weights were there, since the process began to record", _SECONDS),
    ("compute_s", "s", "all else: data, forward, backward, and what a straggler adds", _SECONDS),
    ("push_s", "s", "of sending in `step()`, or in a push to a table: computing does not hide it", _SECONDS),
    ("gate_s", "s", "that its pull waited at the gate, the longest over partitions", _MAYBE_SECONDS),
    ("pull_s", "s", "of waiting for weights, without the time at the gate", _SECONDS),
    ("bytes_up", "bytes", "payload of its pushes", _COUNT),
    ("bytes_down", "bytes", "payload of the weights that it got", _COUNT),
    ("samples", "samples", "that the gradient is of", _COUNT),
    ("loss", "", "what `worker.log(loss=...)` was given for this step", (float, int, NoneType)),
    ("metrics", "", "what else `worker.log` was given for this step, by name", (dict,)),
    ("dropped", "partitions", "on which the push came too late to be applied", _COUNT),
    (
        "abstained",
        "partitions",
        "on which nothing of the push was applied: it had no gradient, or nothing finite",
        _COUNT,
    ),
    ("retried", "frames", "that were sent again, since a connection broke", _COUNT),
    (
        "cpu_s",
        "s",
        "processor time of the worker's process in the step, of all its threads; nothing of where it sleeps",
        _MAYBE_SECONDS,
    ),
    ("compute_cpu_s", "s", "of `cpu_s`, what it had taken when the script called the step", _MAYBE_SECONDS),
    (
        "spread",
        "versions",
        "newest minus oldest version of the weights that it got, over partitions, of all its ranks",
        _MAYBE_COUNT,
    ),
)
COLUMNS = tuple(
    Column(name=name, unit=unit, meaning=meaning, types=types) for name, unit, meaning, types in _ROWS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of one worker; `COLUMNS` says what each field means.

    A push goes to many partitions. `tau`, `version_read` and `version_applied` are those of the partition
    with the largest tau, so a bound on tau is checked on the worst one; None where nothing of the push was
    applied, or that is not known. `gap` is the largest over partitions; None without servers. `gate_s` is
    None where no shard said it.

    Raises:
        UsageError: a number is negative, infinite or too large, or a metric has no name that fits.
    """

    step: int
    clock: int
    version_read: int | None
    version_applied: int | None
    tau: int | None
    gap: int | None
    started_s: float
    ended_s: float
    compute_s: float
    push_s: float
    gate_s: float | None
    pull_s: float
    bytes_up: int
    bytes_down: int
    samples: int
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    dropped: int = 0
    abstained: int = 0
    retried: int = 0
    cpu_s: float | None = None
    compute_cpu_s: float | None = None
    spread: int | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_COUNT:
                raise UsageError(f"{name} must be from 0 to 2^53, got {value}", column=name)
        for name in _TIMES:
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"{name} must be >= 0 and finite, got {value}", column=name)
        if self.ended_s < self.started_s:
            raise UsageError(f"ended_s {self.ended_s} is before started_s {self.started_s}", column="ended_s")
        if (self.tau is None) != (self.version_applied is None) or (
            self.version_applied is not None
            and (self.version_read is None or self.tau != self.version_applied - self.version_read)
        ):
            raise UsageError(
                f"tau {self.tau} is not version_applied {self.version_applied} less version_read "
                f"{self.version_read}",
                column="tau",
            )
        if len(self.metrics) > MAX_METRICS:
            raise UsageError(
                f"metrics: at most {MAX_METRICS} in a step, got {len(self.metrics)}", column="metrics"
            )
        for name in self.metrics:
            if not 0 < len(name) <= MAX_NAME:
                raise UsageError(
                    f"metrics: a name has 1 to {MAX_NAME} characters, got {name[:MAX_NAME]!r}",
                    column="metrics",
                )


_COUNTS = tuple(column.name for column in COLUMNS if column.types in (_COUNT, _MAYBE_COUNT))
_TIMES = tuple(column.name for column in COLUMNS if column.types in (_SECONDS, _MAYBE_SECONDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeader:
    """The first line of a file: whose steps these are.

    Attributes:
        unix_s: when the process began to record; the zero of all times in the file.
        job: name of the job.
        worker: its number.
        incarnation: of the worker, by which one that came again is told from its former self.
        consistency: the model, as a person types it, or `none` or `ddp` without servers.
        num_workers: that the job began with.
        host: name of the machine.
        versions: of Python and of the libraries, by name.

    Raises:
        UsageError: a value makes no sense, or a text is too long.
    """

    unix_s: float
    job: str
    worker: int
    incarnation: int
    consistency: str
    num_workers: int
    host: str
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_job_name(self.job)
        if not 0 <= self.unix_s < math.inf:
            raise UsageError(f"unix_s must be >= 0 and finite, got {self.unix_s}", column="unix_s")
        for name, least in (("worker", 0), ("incarnation", 0), ("num_workers", 1)):
            if not least <= getattr(self, name) <= 2**64:
                raise UsageError(f"{name} must be >= {least}, got {getattr(self, name)}", column=name)
        if len(self.versions) > MAX_METRICS:
            raise UsageError(f"versions: at most {MAX_METRICS}, got {len(self.versions)}", column="versions")
        for name, text in (("consistency", self.consistency), ("host", self.host), *self.versions.items()):
            if len(text) > MAX_TEXT or len(name) > MAX_NAME:
                raise UsageError(f"{name[:MAX_NAME]}: at most {MAX_TEXT} characters", column=name[:MAX_NAME])


_HEADER_TYPES: dict[str, tuple[type, ...]] = {
    "unix_s": _SECONDS,
    "job": (str,),
    "worker": _COUNT,
    "incarnation": _COUNT,
    "consistency": (str,),
    "num_workers": _COUNT,
    "host": (str,),
    "versions": (dict,),
}
_RECORD_TYPES = {column.name: column.types for column in COLUMNS}


def file_name(header: RecordHeader) -> str:
    """Of the file that begins with this header: no other worker, incarnation or job has the same."""
    return f"{header.job}.worker-{header.worker}.{header.incarnation}.jsonl"


def encode_header(header: RecordHeader) -> str:
    """The first line, with its line break."""
    values = {entry.name: getattr(header, entry.name) for entry in fields(header)}
    return _line({"format": FORMAT, **values, "versions": dict(header.versions)})


def encode(record: StepRecord) -> str:
    """The line of a step, with its line break."""
    values = {name: getattr(record, name) for name in _RECORD_TYPES}
    if record.loss is not None:
        values["loss"] = _number(record.loss)
    values["metrics"] = {name: _number(value) for name, value in record.metrics.items()}
    return _line(values)


def decode_header(line: str) -> RecordHeader:
    """Reads the first line of a file.

    Raises:
        UsageError: it is no header, or one of another release.
    """
    values = _object(line)
    found = values.pop("format", None)
    if found != FORMAT:
        raise UsageError(
            f"this is no file of records of format {FORMAT}: its format is {found!r}", format=FORMAT
        )
    _check(values, _HEADER_TYPES, optional=frozenset())
    for name, text in values["versions"].items():
        if not isinstance(text, str):
            raise UsageError(f"versions: {name[:MAX_NAME]} is no text", column="versions")
    return RecordHeader(**values)


def decode(line: str) -> StepRecord:
    """The step that a line is of.

    Raises:
        UsageError: a column is unknown or missing, has a value of another type, or one that makes no sense.
    """
    values = _object(line)
    loss = values.get("loss")
    if isinstance(loss, str):
        values["loss"] = _SPECIAL.get(loss, loss)
    _check(values, _RECORD_TYPES, optional=_OPTIONAL)
    if "metrics" in values:
        values["metrics"] = {name: _metric(name, value) for name, value in values["metrics"].items()}
    return StepRecord(**values)


_OPTIONAL = frozenset(
    {"loss", "metrics", "dropped", "abstained", "retried", "cpu_s", "compute_cpu_s", "spread"}
)  # as in StepRecord


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(float(value))


def _metric(name: str, value: Any) -> float:
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"metrics: {name[:MAX_NAME]} is no number", column="metrics")
    return value


def _object(line: str) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise UsageError(f"a line has at most {MAX_LINE_BYTES} characters, got {len(line)}")
    try:
        values = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"a line is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"a line is no JSON object, it is a {type(values).__name__}")
    return values


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _check(
    values: Mapping[str, Any], types: Mapping[str, tuple[type, ...]], *, optional: frozenset[str]
) -> None:
    unknown = sorted(values.keys() - types.keys())
    if unknown:
        raise UsageError(
            f"unknown column {unknown[0][:MAX_NAME]!r}: a newer release may have written it",
            column=unknown[0],
        )
    missing = sorted(types.keys() - values.keys() - optional)
    if missing:
        raise UsageError(f"column {missing[0]!r} is missing", column=missing[0])
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, types[name]):
            raise UsageError(f"column {name!r} cannot be {str(value)[:MAX_NAME]!r}", column=name)
