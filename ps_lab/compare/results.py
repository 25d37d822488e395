"""Results of runs, read back: files of records, and a folder's runs with them.

A worker that was killed left a last line that is not whole: it is dropped, and the recording says so. What
else is no record is refused, with its file and line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ps_lab.compare.facts import Facts
from ps_lab.compare.folder import Folder, RunFolder
from ps_lab.compare.outcome import Ending, RunOutcome
from ps_lab.experiments.plan import Run
from ps_wire.errors import UsageError
from ps_worker.recording import columns
from ps_worker.recording.columns import RecordHeader, StepRecord

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The file of one incarnation of one worker.

    Attributes:
        header: whose steps these are.
        steps: in order.
        whole: its last line was.
    """

    header: RecordHeader
    steps: tuple[StepRecord, ...]
    whole: bool

    def numbers(self, name: str) -> Numbers:
        """A column, NaN where it has no value; one element per step."""
        return np.array([getattr(step, name) for step in self.steps], dtype=np.float64)

    @cached_property
    def started_unix_s(self) -> Numbers:
        """When each step began."""
        return self.header.unix_s + self.numbers("started_s")

    @cached_property
    def ended_unix_s(self) -> Numbers:
        """When each step ended."""
        return self.header.unix_s + self.numbers("ended_s")

    def metric(self, name: str) -> Numbers:
        """The values that the script logged by that name, NaN where it did not; one element per step."""
        if name == "loss":
            return self.numbers("loss")
        return np.array([step.metrics.get(name, np.nan) for step in self.steps], dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class RunData:
    """One run with all that is there of it.

    Attributes:
        run: its configuration.
        facts: of machine and code; None: it has not begun.
        outcome: None: it has not ended.
        recordings: by worker and incarnation; of a run that has not ended, none.
    """

    run: Run
    facts: Facts | None
    outcome: RunOutcome | None
    recordings: tuple[Recording, ...]

    @property
    def ended(self) -> bool:
        """There is a result, of whichever kind."""
        return self.outcome is not None

    @property
    def failed(self) -> bool:
        """It has ended, and not as it should."""
        return self.outcome is not None and self.outcome.ending is Ending.FAILED


def read_recording(path: Path) -> Recording | None:
    """The recording that a file holds; None: its process ended before the header was whole.

    Raises:
        UsageError: a line is no record; the file and the line are named.
    """
    steps: list[StepRecord] = []
    header: RecordHeader | None = None
    whole = True
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(columns.MAX_LINE_BYTES + 1):
                number += 1
                if not line.endswith(b"\n") and len(line) <= columns.MAX_LINE_BYTES:
                    whole = False  # it may end within a character
                elif header is None:
                    header = columns.decode_header(line.decode())
                else:
                    steps.append(columns.decode(line.decode()))
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no UTF-8 text", file=str(path)) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", file=str(path)) from None
    except UsageError as error:
        raise UsageError(f"{path}, line {number}: {error.message}", file=str(path), line=number) from None
    return None if header is None else Recording(header=header, steps=tuple(steps), whole=whole)


def read_recordings(folder: Path) -> tuple[Recording, ...]:
    """All recordings of a folder, by job, worker and incarnation."""
    found = [one for path in folder.glob("*.jsonl") if (one := read_recording(path)) is not None]
    return tuple(sorted(found, key=lambda one: (one.header.job, one.header.worker, one.header.incarnation)))


def read_run(folder: RunFolder) -> RunData:
    """A run with all that is there of it."""
    outcome = folder.outcome()
    return RunData(
        run=folder.run,
        facts=folder.facts(),
        outcome=outcome,
        recordings=read_recordings(folder.records) if outcome is not None else (),
    )


def read_runs(folder: Folder) -> tuple[RunData, ...]:
    """All runs of a comparison, in the order of its plan."""
    return tuple(map(read_run, folder.runs))


def joined(parts: Sequence[Numbers]) -> Numbers:
    """The parts as one array."""
    return np.concatenate(parts) if parts else np.empty(0)
