"""A simulated run as the files that workers write of a real one: one per incarnation, a line per step.

The zero of all times is the beginning of the run, so `unix_s` is 0 in each header: no real run has that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ps_lab.compare.results import Recording, read_recordings
from ps_lab.outputs import make_folder, written
from ps_lab.simulate.engine import SimulatedRun
from ps_wire.errors import UsageError
from ps_worker.recording import columns
from ps_worker.recording.columns import RecordHeader, StepRecord

HOST = "simulated"


def recorded(outcome: SimulatedRun, job: str) -> Iterator[Recording]:
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
        yield Recording(
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
            whole=True,
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


def write(outcome: SimulatedRun, folder: Path, job: str) -> None:
    """Writes the files of a run into a folder, which is made.

    Raises:
        UsageError: the folder cannot be made.
        OutputFailed: a file cannot be written.
    """
    make_folder(folder)
    for it in recorded(outcome, job):
        path = folder / columns.file_name(it.header)
        with written(path), path.open("w", encoding="utf-8") as file:
            file.write(columns.encode_header(it.header))
            file.writelines(map(columns.encode, it.steps))


def read(folder: Path) -> tuple[Recording, ...]:
    """The files of a run, real or simulated; a last line that is not whole is left out.

    Raises:
        UsageError: there is none, or one is damaged; the message names it.
    """
    found = read_recordings(folder)
    if not found:
        raise UsageError(f"{folder} has no files of records (PS_RECORD)", folder=str(folder))
    return found
