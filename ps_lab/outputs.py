"""Files and folders that a command writes for a person: what cannot be written is said before a long run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ps_lab.errors import OutputFailed
from ps_wire.errors import UsageError


def check_file(path: Path | None, name: str) -> None:
    """Finds out whether a file can be written; it is there then.

    Args:
        path: of the file; None: none is to be written.
        name: of the option that named it, for people.

    Raises:
        UsageError: it cannot.
    """
    if path is None:
        return
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(f"{name} {path}: {error.strerror or error}") from None


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Has the command end with one line where the block cannot write.

    Args:
        path: of the file or folder that is written.

    Raises:
        OutputFailed: it cannot.
    """
    try:
        yield
    except OSError as error:
        raise OutputFailed(f"{path} cannot be written: {error.strerror or error}", file=str(path)) from None


def make_folder(path: Path) -> None:
    """Makes a folder that is not there yet, with those above it.

    Raises:
        UsageError: it cannot be made, or files cannot be made in it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror or error}", folder=str(path)) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{path} cannot be written", folder=str(path))
