"""A simulated run as the files that workers write of a real one: one per incarnation, a line per step.

The zero of all times is the beginning of the run, so `unix_s` is 0 in each header: no real run has that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ps_lab.simulate.engine import Outcome
from ps_wire.errors import UsageError
from ps_worker.recording import columns
from ps_worker.recording.columns import RecordHeader, StepRecord

HOST = "simulated"
MAX_FILES = 10_000
MAX_STEPS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The steps of one incarnation of a worker, real or simulated."""

    header: RecordHeader
    steps: tuple[StepRecord, ...]


def recorded(outcome: Outcome, job: str) -> Iterator[Recorded]:
    """The run by worker and incarnation."""
    table, setup = outcome.steps, outcome.setup
    names = ("worker", "incarnation", "step", "clock", "version_read", "tau", "gap", "dropped")
    whole = {name: table.whole(name) for name in names}
    times = ("started_s", "ended_s", "compute_s", "push_s", "gate_s", "pull_s", "loss")
    seconds = {name: table.seconds(name) for name in times}
    order = np.lexsort((whole["incarnation"], whole["worker"]))
    keys = np.stack([whole["worker"][order], whole["incarnation"][order]])
    changes = np.flatnonzero(np.any(np.diff(keys), axis=0)) + 1
    for rows in np.split(order, changes):
        if not len(rows):
            continue
        header = RecordHeader(
            unix_s=0.0,
            job=job,
            worker=int(whole["worker"][rows[0]]),
            incarnation=int(whole["incarnation"][rows[0]]),
            consistency=str(setup.consistency),
            num_workers=setup.num_workers,
            host=HOST,
        )
        yield Recorded(
            header=header,
            steps=tuple(
                _record(
                    {name: int(column[row]) for name, column in whole.items()},
                    {name: float(column[row]) for name, column in seconds.items()},
                    num_bytes=setup.costs.num_bytes,
                    samples=setup.batch_size,
                )
                for row in rows
            ),
        )


def _record(whole: dict[str, int], seconds: dict[str, float], *, num_bytes: int, samples: int) -> StepRecord:
    applied = whole["tau"] >= 0
    return StepRecord(
        step=whole["step"],
        clock=whole["clock"],
        version_read=whole["version_read"] if applied else None,
        version_applied=whole["version_read"] + whole["tau"] if applied else None,
        tau=whole["tau"] if applied else None,
        gap=whole["gap"],
        started_s=seconds["started_s"],
        ended_s=seconds["ended_s"],
        compute_s=max(0.0, seconds["compute_s"]),  # differences of floats
        push_s=max(0.0, seconds["push_s"]),
        gate_s=max(0.0, seconds["gate_s"]),
        pull_s=max(0.0, seconds["pull_s"]),
        bytes_up=num_bytes,
        bytes_down=num_bytes,
        samples=samples,
        loss=None if math.isnan(seconds["loss"]) else seconds["loss"],
        dropped=whole["dropped"],
    )


def write(outcome: Outcome, folder: Path, job: str) -> None:
    """Writes the files of a run into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for it in recorded(outcome, job):
        with (folder / columns.file_name(it.header)).open("w", encoding="utf-8") as file:
            file.write(columns.encode_header(it.header))
            file.writelines(map(columns.encode, it.steps))


def read(folder: Path) -> list[Recorded]:
    """The files of a run, real or simulated; a last line that is not whole is left out.

    Raises:
        UsageError: there is none, or one is damaged; the message names it.
    """
    paths = sorted(folder.glob("*.jsonl"))[: MAX_FILES + 1]
    if not paths or len(paths) > MAX_FILES:
        raise UsageError(f"{folder} has no files of records (PS_RECORD), or more than {MAX_FILES}")
    found: list[Recorded] = []
    for path in paths:
        try:
            found.append(_read_file(path))
        except (UsageError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {error}") from None
        if sum(len(it.steps) for it in found) > MAX_STEPS:
            raise UsageError(f"{folder} has more than {MAX_STEPS} steps: give fewer runs at once")
    return found


def _read_file(path: Path) -> Recorded:
    steps: list[StepRecord] = []
    with path.open(encoding="utf-8") as file:
        header = columns.decode_header(file.readline(columns.MAX_LINE_BYTES))
        while (line := file.readline(columns.MAX_LINE_BYTES)).endswith("\n") and len(steps) <= MAX_STEPS:
            steps.append(columns.decode(line))
    return Recorded(header=header, steps=tuple(steps))
