"""Generations: numbers that only grow, one for each server process, and one for each rollback of a job.

The coordinator takes them from its state directory, where each is a durable file that only one process can
create. So of two coordinators one has the newer number, whoever was started when, and the older one finds the
newer's files there. Without a directory the numbers live as long as the process, and nothing is said about a
process after it.

A second coordinator that is started by mistake is refused before that: the first one holds a lock on the
directory as long as it lives. Where a file system has no locks, or each host has its own, the numbers alone
decide.

It must not know jobs or shards.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import IO

from ps_wire.errors import ConfigurationRefused, Fenced
from ps_wire.frames.frame import MAX_GENERATION
from ps_wire.snapshot.writing import sync_folder
from ps_wire.text import one_line

KEPT = 16  # files; older ones are removed
MAX_HOLDER = 300  # characters of who holds the directory
_NAME = re.compile(r"generation-(\d{1,10})")


class Hold:
    """The lock of one coordinator on its state directory; it ends with the process, or `let_go`."""

    def __init__(self, folder: Path) -> None:
        """Takes it; on a file system without locks there is none.

        Raises:
            ConfigurationRefused: nothing can be written there.
            Fenced: a coordinator that is alive has it; its host and pid are named.
        """
        self._file: IO[str] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / "holder").open("a+")
        except OSError as error:
            raise ConfigurationRefused(f"--state-dir {folder}: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = one_line(file.read(MAX_HOLDER).strip(), MAX_HOLDER) or "who has not said yet which"
            file.close()
            raise Fenced(
                f"--state-dir {folder} is held by a shard 0 that is alive ({holder}): this one stops. To "
                "replace that one, stop it first"
            ) from None
        except OSError:
            file.close()
            return
        self._file = file
        with suppress(OSError):  # a full disk: it is held all the same
            file.truncate(0)
            file.write(f"host {socket.gethostname()}, pid {os.getpid()}\n")
            file.flush()

    def let_go(self) -> None:
        """Another one may have it."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Generations:
    """The generations of the coordinator and of rollbacks, kept in a folder where there is one.

    Attributes:
        own: that of the coordinator itself: the first number that it took.
    """

    def __init__(self, folder: Path | None) -> None:
        """Takes the first number.

        Args:
            folder: the state directory, made if need be; None: there is none.

        Raises:
            ConfigurationRefused: nothing can be written there.
        """
        self._folder = folder
        self._last = 0
        self.own = 0
        self.own = self.next()

    @property
    def lasting(self) -> bool:
        """Whether numbers outlive the process."""
        return self._folder is not None

    def next(self) -> int:
        """A number that is greater than all before.

        Raises:
            ConfigurationRefused: nothing can be written to the state directory.
            Fenced: a newer coordinator has begun to use it.
        """
        number = self._last + 1 if self._folder is None else self._create(self._folder)
        if number > MAX_GENERATION:
            raise ConfigurationRefused(
                f"generation {number}: the state directory has seen too many restarts; empty it once all "
                "servers are stopped"
            )
        self._last = number
        return number

    def check(self) -> None:
        """Refuses to go on where another coordinator was started on the same state directory.

        Raises:
            Fenced: naming the directory.
        """
        newest = max(self._numbers(), default=0)
        if self._folder is None or newest <= self._last:
            return
        owner = _owner(self._folder / f"generation-{newest}")
        if owner is not None and owner > self.own:
            raise Fenced(
                f"another shard 0 was started on --state-dir {self._folder} (its generation is {owner}, this "
                f"one's {self.own}): this one stops, and what it holds is void",
                generation=owner,
            )

    def _create(self, folder: Path) -> int:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            while True:
                if self.own:
                    self.check()
                number = max([self._last, *self._numbers()]) + 1
                try:
                    descriptor = os.open(
                        folder / f"generation-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644
                    )
                except FileExistsError:
                    continue
                with os.fdopen(descriptor, "w") as file:
                    file.write(str(self.own or number))
                    file.flush()
                    os.fsync(file.fileno())
                sync_folder(folder, above=1)  # else power is lost, and the number comes again
                self._remove(folder, number - KEPT)
                return number
        except OSError as error:
            raise ConfigurationRefused(f"--state-dir {folder}: {error.strerror}") from None

    def _numbers(self) -> list[int]:
        if self._folder is None:
            return []
        names = [_NAME.fullmatch(entry.name) for entry in self._folder.iterdir()]
        return [int(name[1]) for name in names if name is not None]

    @staticmethod
    def _remove(folder: Path, below: int) -> None:
        for entry in folder.iterdir():
            name = _NAME.fullmatch(entry.name)
            if name is not None and int(name[1]) < below:
                entry.unlink(missing_ok=True)


def _owner(path: Path) -> int | None:
    """The coordinator that took this number; None where it has not said so yet, or the file has gone."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
