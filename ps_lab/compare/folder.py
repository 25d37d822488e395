"""The folder of a comparison: the experiment, and one folder per run.

    DIR/experiment.json        its fingerprint and its TOML text
    DIR/lock                   held by whoever adds runs
    DIR/runs/ID/config.json    the exact configuration, and the facts of machine and code
    DIR/runs/ID/records/       what the workers wrote, one file each
    DIR/runs/ID/result.json    what came of it; a run that has none is done again
    DIR/report/                what `ps-lab report` makes

Invariants: every JSON file is whole or not there, at any moment of a crash. A folder belongs to one
experiment and says so to another. It knows neither how runs are started nor how a report looks.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ps_lab.compare import outcome as outcomes
from ps_lab.compare.facts import Facts
from ps_lab.compare.outcome import RunOutcome
from ps_lab.experiments import experiment as experiments
from ps_lab.experiments.experiment import Experiment
from ps_lab.experiments.plan import Run, runs
from ps_lab.outputs import make_folder, written
from ps_wire.errors import UsageError

FORMAT = 1
EXPERIMENT = "experiment.json"
CONFIG = "config.json"
RESULT = "result.json"
RECORDS = "records"
REPORT = "report"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run.

    Attributes:
        run: its configuration.
        path: where.
    """

    run: Run
    path: Path

    @property
    def records(self) -> Path:
        """Where the run's processes write, once it has begun."""
        return self.path / RECORDS

    def begin(self, facts: Facts) -> None:
        """Makes an empty folder for the run: what an earlier attempt has left half done goes.

        Raises:
            UsageError: it has been done already.
            OutputFailed: it cannot be made.
        """
        if (self.path / RESULT).exists():
            raise UsageError(f"{self.path} has a result: a run that has ended is not repeated")
        with written(self.path):
            if self.records.exists():
                shutil.rmtree(self.records)
            self.records.mkdir(parents=True)
        write_json(
            self.path / CONFIG,
            {"format": FORMAT, "id": self.run.id, "run": self.run.to_json(), "facts": facts.to_json()},
        )

    def end(self, outcome: RunOutcome) -> None:
        """Writes what came of the run; from then on it is done.

        Raises:
            OutputFailed: it cannot be written; the run is to be done again.
        """
        write_text(self.path / RESULT, outcomes.encode(outcome))

    def facts(self) -> Facts | None:
        """Of the machine and the code, as the run found them; None: it has not begun.

        Raises:
            UsageError: the file is damaged, or of another release.
        """
        path = self.path / CONFIG
        if not path.exists():
            return None
        values = read_json(path)
        if values.get("id") != self.run.id:
            raise UsageError(f"{path} is of the run {values.get('id')!r}, not of {self.run.id!r}")
        try:
            return Facts(**values["facts"])
        except (KeyError, TypeError) as error:
            raise UsageError(f"{path} is damaged: {type(error).__name__}: {error}") from None

    def outcome(self) -> RunOutcome | None:
        """Reads how the run went; None: it has not ended.

        Raises:
            UsageError: the file is damaged, or of another release.
        """
        path = self.path / RESULT
        if not path.exists():
            return None
        try:
            return outcomes.decode(path.read_text(encoding="utf-8"))
        except (UsageError, OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {error}") from None


class Folder:
    """A folder on disk with an experiment and its runs.

    Attributes:
        path: of the folder.
        experiment: that it belongs to.
        runs: of the experiment, in their order.
    """

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.path = path
        self.experiment = experiment
        self.runs = tuple(RunFolder(run, path / "runs" / run.id) for run in runs(experiment))

    @classmethod
    def open(cls, path: Path) -> Folder:
        """A folder that is there.

        Raises:
            UsageError: it is none of a comparison, is damaged, or was written by another release.
        """
        file = path / EXPERIMENT
        if not file.is_file():
            raise UsageError(f"{path} is no folder of a comparison: it has no {EXPERIMENT}", folder=str(path))
        values = read_json(file)
        if values.get("format") != FORMAT or not isinstance(values.get("toml"), str):
            raise UsageError(
                f"{file} has format {values.get('format')!r}, not {FORMAT}: another release wrote it"
            )
        experiment = experiments.parse(values["toml"])
        if experiment.fingerprint() != values.get("fingerprint"):
            raise UsageError(f"{file} is damaged: its fingerprint is not that of its experiment")
        return cls(path, experiment)

    @classmethod
    def make(cls, path: Path, experiment: Experiment, text: str) -> Folder:
        """A folder for an experiment: a new one, or one that it has begun.

        Args:
            path: where; it is made.
            experiment: as it was read.
            text: of its file.

        Raises:
            UsageError: the folder cannot be made, belongs to another experiment, or has other files.
        """
        if (path / EXPERIMENT).exists():
            there = cls.open(path).experiment
            if there.fingerprint() != experiment.fingerprint():
                keys = ", ".join(experiment.differs_in(there))
                raise UsageError(
                    f"{path} belongs to the experiment {there.name!r}, which differs from "
                    f"{experiment.name!r} in: {keys}. Take another folder",
                    folder=str(path),
                    experiment=there.name,
                )
            return cls(path, experiment)
        make_folder(path)
        left = ("lock", f".{EXPERIMENT}.")  # by somebody who was killed before the experiment was written
        if not all(entry.name.startswith(left) for entry in path.iterdir()):
            raise UsageError(f"{path} has other files: take a new folder", folder=str(path))
        write_json(
            path / EXPERIMENT,
            {
                "format": FORMAT,
                "name": experiment.name,
                "fingerprint": experiment.fingerprint(),
                "toml": text,
            },
        )
        return cls(path, experiment)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else adds runs meanwhile.

        Raises:
            UsageError: somebody does.
        """
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another process adds runs to {self.path}", folder=str(self.path)) from None
            yield

    def check_kind(self, *, simulated: bool) -> None:
        """Refuses to add runs beside those of the other kind: a report would take both for one.

        Args:
            simulated: the runs that are to be added.

        Raises:
            UsageError: a run has ended that is measured, where these are simulated, or the other way round.
        """
        kinds = {True: "simulated", False: "measured"}
        for one in self.runs:
            facts = one.facts() if (one.path / RESULT).exists() else None
            if facts is not None and facts.simulated != simulated:
                raise UsageError(
                    f"{self.path} has {kinds[not simulated]} runs, to which no {kinds[simulated]} ones are "
                    "added. Take another folder",
                    folder=str(self.path),
                )

    def missing(self) -> tuple[RunFolder, ...]:
        """Runs without a result, in their order."""
        return tuple(run for run in self.runs if not (run.path / RESULT).exists())


def read_json(path: Path) -> dict[str, Any]:
    """An object that a file holds; else raises `UsageError`."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read {path}: {error}", file=str(path)) from None
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds no object", file=str(path))
    return values


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes a file so that it is there whole, or not at all."""
    write_text(path, json.dumps(values, indent=1))


def write_text(path: Path, text: str) -> None:
    """Writes a file so that it is there whole, or not at all: then it raises `OutputFailed`."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    with written(path):
        try:
            with half.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            half.replace(path)
        except BaseException:
            half.unlink(missing_ok=True)
            raise
