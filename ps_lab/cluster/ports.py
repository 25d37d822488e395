"""Ports of loopback for processes that are about to be started.

Between the choice of a port and the bind of the server that is to have it lie seconds. So that two commands
on one machine do not choose the same, whoever chooses locks a byte of one file, at the port's number (POSIX
record locks, `fcntl(2)`). Locks end with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from ps_lab.cluster.host import LOCAL
from ps_wire.errors import Unavailable

HOST = LOCAL.address
# Below what Linux and macOS hand out to outgoing connections, so that none of those takes a port between
# our choice and the server's bind.
PORTS = range(20_000, 32_000)


def is_free(port: int) -> bool:
    """Whether a server could bind it on loopback."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class PortChooser:
    """Chooses ports that nobody has chosen who is still running. Thread-safe."""

    def __init__(
        self, file: Path | None = None, ports: range = PORTS, is_free: Callable[[int], bool] = is_free
    ) -> None:
        """Touches nothing yet.

        Args:
            file: with a byte for each port, made where it is missing; in the folder for temporary files, one
                for each user, if None. Where it cannot be made, other processes are not looked at.
            ports: to choose from.
            is_free: whether nobody listens on a port.
        """
        self._path = file
        self._ports = ports
        self._is_free = is_free
        self._lock = threading.Lock()
        self._chosen: set[int] = set()
        self._descriptor: int | None = None

    def choose(self, count: int) -> tuple[int, ...]:
        """Distinct ports on which nobody listens now, in no order.

        Once all have been chosen, those whom nobody listens on are given a second time.

        Raises:
            Unavailable: there are not enough.
        """
        with self._lock:
            found = self._more(count)
            if len(found) < count:
                self._forget(keep=found)
                found += self._more(count - len(found))
        if len(found) < count:
            span = f"{self._ports.start}..{self._ports.stop - 1}"
            raise Unavailable(f"no {count} free ports in {span} on {HOST}")
        return tuple(found)

    def _more(self, count: int) -> list[int]:
        found: list[int] = []
        for port in random.SystemRandom().sample(self._ports, len(self._ports)):
            if len(found) == count:
                break
            # Claimed first: to look binds it for a moment, in which nobody who has claimed it could.
            if port in self._chosen or not self._claim(port):
                continue
            if self._is_free(port):
                self._chosen.add(port)
                found.append(port)
            else:
                self._release(port)
        return found

    def _claim(self, port: int) -> bool:
        """Whether no other process has it; from now on it is ours."""
        if self._descriptor is None:
            with contextlib.suppress(OSError):  # no folder for temporary files, or none that we may write
                # Never closed: that would end all locks of this process.
                self._descriptor = os.open(
                    self._path or Path(tempfile.gettempdir()) / f"ps-lab-ports-{os.getuid()}",
                    os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
                    0o600,
                )
        if self._descriptor is not None:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except (BlockingIOError, PermissionError):
                return False
            except OSError:  # a file system without locks
                pass
        return True

    def _release(self, port: int) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, port)

    def _forget(self, keep: list[int]) -> None:
        for port in self._chosen.difference(keep):
            self._release(port)
        self._chosen = set(keep)


_CHOOSER = PortChooser()


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of loopback on which nobody listens now, and which no other command of ours has chosen.

    Raises:
        Unavailable: there are not enough.
    """
    return _CHOOSER.choose(count)
