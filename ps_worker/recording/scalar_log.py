"""Scalars that a script logs, for TensorBoard: one run for each job, written by the first worker.

    LOG_DIR/JOB/events.out.tfevents...   one file for each incarnation

TensorBoard wants one writer at a time in a run, so the other workers write nothing; a curve is that of the
first worker. What a run had before, and what is undone, TensorBoard forgets. A folder
that cannot be written ends the log and not the run. It must not know the network. One thread uses it: the
one that trains.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ps_wire.errors import UsageError
from ps_wire.text import one_line

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

PACKAGE = "tensorboard"


class ScalarLog:
    """The run of one job; see the module's docstring."""

    def __init__(self, folder: Path, job: str, *, warn: Callable[[str], None]) -> None:
        """Has no file; `enter` makes one.

        Args:
            folder: of all runs; made if it is not there.
            job: names the run.
            warn: told, once, that nothing can be written.

        Raises:
            UsageError: the package that writes such files is not installed.
        """
        if importlib.util.find_spec(PACKAGE) is None:
            raise UsageError(
                f"log_dir (PS_LOG_DIR) needs the package {PACKAGE}, which is not installed: "
                f"pip install {PACKAGE}, or torch-parameter-server[{PACKAGE}]"
            )
        self._folder = folder / job
        self._warn = warn
        self._writer: SummaryWriter | None = None
        self._failed = False

    def enter(self, *, first: bool, since: int | None) -> None:
        """Begins a file; nothing is written unless this is the first worker's first rank.

        Args:
            first: it is.
            since: what the run has of this many steps and more is void; None: nothing is.
        """
        self.close()
        if not first or self._failed:
            return
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - for whoever asks for it

        try:
            self._writer = SummaryWriter(str(self._folder), purge_step=since)
        except OSError as error:
            self._give_up(error)

    def log(self, name: str, number: float, step: int) -> None:
        """A metric, once so many steps were taken."""
        if self._writer is not None:
            try:
                self._writer.add_scalar(name, number, step)
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """The file is whole. May be called again."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._writer, self._failed = None, True
        self._warn(f"WARNING: no scalars are logged any more in {self._folder}: {one_line(str(error))}")
