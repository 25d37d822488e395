"""The lines of a run's servers: each server's go into a file of a folder, and troubles to the screen, too.

The folder is one of the system's for temporary files, and goes when the run ends well, unless a person has
named another one. Lines come from a thread of each server; each has a file of its own.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from ps_wire.errors import UsageError
from ps_wire.text import one_line

SHOW = "show"  # instead of a folder
_CALM = re.compile(r"\S+Z (DEBUG|INFO) shard=")
_TRACEBACK = "  | "  # begins the lines of one, which belong to the line before


class ServerLogs:
    """Takes the lines of all processes of a run.

    Attributes:
        folder: with a file for each server; None: everything is shown.
    """

    def __init__(self, where: str | None, show: Callable[[str, str], None]) -> None:
        """Makes the folder.

        Args:
            where: a folder, or `show`; None: a new folder.
            show: takes the name of a process and a line of it.

        Raises:
            UsageError: the folder cannot be made.
        """
        self.folder: Path | None = None
        self._show = show
        self._files: dict[str, TextIO] = {}
        self._calm: dict[str, bool] = {}  # by server, whether its last line was
        self._kept = where is not None
        if where is None:
            self.folder = Path(tempfile.mkdtemp(prefix="ps-lab-"))
        elif where != SHOW:
            self.folder = Path(where)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"--logs {where}: {error.strerror}; it is a folder, or {SHOW}") from None

    def receive(self, process: str, line: str) -> None:
        """One line, from the thread that reads the process."""
        if self.folder is None or not process.startswith("server "):
            self._show(process, line)
            return
        if process not in self._files:
            path = self.folder / f"{process.replace(' ', '-')}.log"
            self._files[process] = path.open("a", buffering=1, encoding="utf-8", errors="replace")
        self._files[process].write(f"{one_line(line)}\n")
        if not line.startswith(_TRACEBACK):
            self._calm[process] = _CALM.match(line) is not None
        if not self._calm.get(process, False):
            self._show(process, line)

    def close(self, *, well: bool) -> None:
        """To be called when all servers have ended; `well`: nobody will look for what they wrote."""
        for file in self._files.values():
            file.close()
        if well and not self._kept and self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
