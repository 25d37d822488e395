"""The log of a run: what its processes say, in a file.

It knows nothing of runs. Whoever reads a process's output goes on where there is no room for a line, else the
process would wait for its reader; that something is missing is kept, and said by `check`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ps_lab.errors import OutputFailed
from ps_lab.outputs import written
from ps_worker.recording.recorder import GAVE_UP


class RunLog:
    """A context manager that closes the file. Lines may come from several threads, and after its end."""

    def __init__(self, path: Path) -> None:
        """Makes the file.

        Raises:
            OutputFailed: it cannot be made.
        """
        self._path = path
        self._missing = ""  # what was not written
        with written(path):
            self._file = path.open("w", encoding="utf-8", errors="replace", buffering=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # what is buffered can go nowhere
            self._file.close()

    def add(self, name: str, line: str) -> None:
        """Takes a line of the process of that name."""
        if GAVE_UP in line:
            self._missing = f"{name} says: {line}"
        try:
            self._file.write(f"{name:<9}| {line}\n")
        except OSError as error:
            self._missing = f"{self._path} cannot be written: {error.strerror or error}"
        except ValueError:
            pass  # the run is over, and its log closed

    def check(self) -> None:
        """Finds out whether all was written, also the records of those whose lines these are.

        Raises:
            OutputFailed: it was not.
        """
        if self._missing:
            raise OutputFailed(
                f"{self._missing}. The run is not whole: make room, and go on with --resume",
                file=str(self._path),
            )
