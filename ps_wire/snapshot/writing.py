"""One file that is being written: it is there whole, and durable, or not at all.

On a local disk it has another name until it is durable; then it is renamed, and its folder made durable.
Elsewhere what is written is there once it is closed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ps_wire.errors import SnapshotFailed
from ps_wire.snapshot.manifest import FileRecord

UNFINISHED = ".unfinished"


class Writing:
    """One file of a snapshot that is being written. Everything but `abandon` raises `SnapshotFailed`."""

    def __init__(self, files: Any, path: str, name: str, whose: str, *, local: bool) -> None:
        """Opens it; `whose` begins what people read if something fails."""
        self._name = name
        self._whose = whose
        self._target = Path(path) if local else None
        self._unfinished = Path(path + UNFINISHED)
        self._digest = hashlib.sha256()
        self._bytes = 0
        with self._named():
            if self._target is not None:
                self._target.parent.mkdir(parents=True, exist_ok=True)
                self._file: Any = self._unfinished.open("wb", buffering=0)
            else:
                self._file = files.open(path, "wb")

    def write(self, part: bytes | memoryview) -> None:
        """More of it; bytes, or memory of them."""
        self._digest.update(part)
        self._bytes += len(part)
        with self._named():
            if self._target is not None:
                _write_all(self._file, part)
            else:
                self._file.write(part)

    @property
    def sha256(self) -> str:
        """Of what was written so far, in hex."""
        return self._digest.hexdigest()

    def finish(self) -> FileRecord:
        """It is whole: durable on return."""
        with self._named():
            if self._target is None:
                self._file.close()
            else:
                os.fsync(self._file.fileno())
                self._file.close()
                self._unfinished.rename(self._target)
                sync_folder(self._target.parent, above=2)  # the snapshot's; the job's, and that of all
        return FileRecord(name=self._name, bytes=self._bytes, sha256=self.sha256)

    def abandon(self) -> None:
        """Nothing is left of it."""
        with suppress(Exception):
            if self._target is None:
                self._file.discard()
            else:
                self._file.close()
                self._unfinished.unlink()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each kind of storage has errors of its own
            raise SnapshotFailed(f"{self._whose}: {why(error)}", file=self._name) from error


def _write_all(file: Any, part: bytes | memoryview) -> None:
    left = memoryview(part).cast("B")
    while left:
        left = left[file.write(left) :]


def sync_folder(folder: Path, *, above: int = 0) -> None:
    """Makes names durable that files of this folder have got, or lost; and folders' names, so many above it.

    A folder above that may not be opened, only passed through, is left: somebody else made what is in it.
    """
    _sync(folder)
    for higher in list(folder.parents)[:above]:
        with suppress(PermissionError):
            _sync(higher)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Writes a file on a local disk. Raises `SnapshotFailed`; then nothing is left of it."""
    writing = Writing(None, str(path), path.name, f"cannot write {path}", local=True)
    try:
        for part in parts:
            writing.write(part)
        writing.finish()
    except BaseException:
        writing.abandon()
        raise


def why(error: BaseException) -> str:
    """The system's own words, where it has any."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"
