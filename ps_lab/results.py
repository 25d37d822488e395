"""Recorded runs as a table of pandas, for a notebook.

    from ps_lab import results

    steps = results.load("out")
    steps.groupby(["model", "profile"])["tau"].describe()

What `ps-lab report` makes needs no pandas and does not come through here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ps_lab.compare.folder import EXPERIMENT, Folder
from ps_lab.compare.results import Recording, read_recordings, read_runs
from ps_lab.errors import LibraryMissing
from ps_wire.errors import UsageError
from ps_worker.recording.columns import COLUMNS

try:
    import pandas as pd
except ModuleNotFoundError:
    raise LibraryMissing(
        "to load results as a table, pandas is needed and is not installed: "
        "pip install 'torch-parameter-server[compare]'"
    ) from None

_RUN = ("model", "profile", "workers", "lr", "seed", "repeat")


def load(folder: str | Path) -> pd.DataFrame:
    """One row per recorded step.

    Args:
        folder: of a comparison, or one that `PS_RECORD` named.

    Returns:
        The documented columns of a record; `metrics.NAME` for each metric that was logged; `job`, `worker`,
        `incarnation`, `host` and `started_unix_s`, `ended_unix_s`; of a comparison also `run` and what
        defines it: `model`, `profile`, `workers`, `lr`, `seed`, `repeat`. Runs without a result are left out.

    Raises:
        UsageError: there are no records, or a file is damaged.
    """
    path = Path(folder)
    if (path / EXPERIMENT).exists():
        rows = [
            row
            for data in read_runs(Folder.open(path))
            for recording in data.recordings
            for row in _rows(recording, _named(data.run))
        ]
        return pd.DataFrame(rows, columns=_columns(rows, ("run", *_RUN)))
    recordings = read_recordings(path) if path.is_dir() else ()
    if not recordings:
        raise UsageError(f"{path} has no records, and is no folder of a comparison", folder=str(path))
    rows = [row for recording in recordings for row in _rows(recording, {})]
    return pd.DataFrame(rows, columns=_columns(rows, ()))


def _named(run: Any) -> dict[str, Any]:
    return {
        "run": run.id,
        **{name: run.profile.name if name == "profile" else getattr(run, name) for name in _RUN},
    }


def _rows(recording: Recording, run: dict[str, Any]) -> Iterator[dict[str, Any]]:
    header = recording.header
    whose = {name: getattr(header, name) for name in ("job", "worker", "incarnation", "host")}
    for step in recording.steps:
        values = {column.name: getattr(step, column.name) for column in COLUMNS if column.name != "metrics"}
        yield {
            **run,
            **whose,
            **values,
            "started_unix_s": header.unix_s + step.started_s,
            "ended_unix_s": header.unix_s + step.ended_s,
            **{f"metrics.{name}": value for name, value in step.metrics.items()},
        }


def _columns(rows: list[dict[str, Any]], run: tuple[str, ...]) -> list[str]:
    first = [*run, "job", "worker", "incarnation", "host"]
    first += [column.name for column in COLUMNS if column.name != "metrics"]
    first += ["started_unix_s", "ended_unix_s"]
    return first + sorted({name for row in rows for name in row} - set(first))
