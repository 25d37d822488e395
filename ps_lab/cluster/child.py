"""One child process: its output line by line, its end reported once, nothing of it left behind.

It runs in a process group of its own, so that Ctrl-C reaches only us and we choose the order in which things
end; what it started itself ends with it, and with us (see `group_killer`). Two threads per child, reader and
waiter, both ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from ps_lab.cluster import fork_server
from ps_lab.cluster.group_killer import GroupKiller
from ps_lab.cluster.process_handle import ProcessHandle
from ps_lab.errors import shell_code
from ps_wire.process.die_with_parent import tied

LINE_BYTES = 64 << 10  # a longer line is handed on in parts, so that a child cannot fill our memory
DRAIN_S = 2.0  # output that a grandchild outside the group may hold open is not waited for longer

_keeper = GroupKiller()


class Started(Protocol):
    """A process that was started: `subprocess.Popen` is one, and `fork_server.Forked`."""

    @property
    def pid(self) -> int:
        """Its number, until it is waited for."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """The pipe that it reads, if it reads one."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """The pipe that it writes."""

    def wait(self) -> int:
        """Waits for its end, and reaps it; negative: the signal that ended it."""


class Child:
    """A running command. Start it from a thread that lives as long as it should (see `die_with_parent`).

    Attributes:
        name: for people: "worker 2".
        pid: its process, and its process group.
        exit_code: as a shell says it (128 + N: signal N); None while it runs.
        cpu_s: processor time of the process, once it has ended, with that of the children that it has waited
            for; None: not known on this system.
    """

    def __init__(
        self,
        *,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_line: Callable[[str, str], None],
        on_exit: Callable[[Child], None],
        with_stdin: bool = False,
        fresh: bool = True,
    ) -> None:
        """Starts it.

        Args:
            name: for people.
            command: absolute path of a program, and its arguments.
            environment: all of it, not an addition to ours.
            on_line: called with name and line, without its end, from the reader thread.
            on_exit: called once, after the last line, from the waiter thread.
            with_stdin: it reads what `tell` writes; otherwise its stdin is empty.
            fresh: an interpreter of its own; else one that the `fork_server` forks, where it can.
        """
        self.name = name
        self.exit_code: int | None = None
        self.cpu_s: float | None = None
        self._on_line = on_line
        self._on_exit = on_exit
        self._process: Started = (
            _executed(command, environment, with_stdin=with_stdin)
            if fresh or not fork_server.shared.serves(command)
            else fork_server.shared.start(command, environment, with_stdin=with_stdin)
        )
        self.pid = self._process.pid
        self._handle = ProcessHandle(self.pid)
        _keeper.keep(self.pid)
        self._reader = threading.Thread(target=self._read, name=f"{name} output", daemon=True)
        self._reader.start()
        self._waiter = threading.Thread(target=self._wait, name=f"{name} end", daemon=True)
        self._waiter.start()

    def used_s(self) -> float | None:
        """Processor time by now, as `cpu_s`; None: not known on this system."""
        return _cpu_s(self.pid) if self.exit_code is None else self.cpu_s

    def tell(self, text: str) -> None:
        """Writes a line to its stdin; nothing happens if it reads no more: its end is reported anyway.

        Blocks while the pipe is full, so tell only what it reads.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # ValueError: closed, since it has ended
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()

    def terminate(self) -> None:
        """Asks it to end (SIGTERM to the process itself); nothing happens if it has ended."""
        self._handle.send(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and all that it started, at once; nothing happens if it has ended."""
        self._handle.send_group(signal.SIGKILL)

    def join(self) -> None:
        """Waits until it has ended and `on_exit` has been called."""
        self._waiter.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while data := output.readline(LINE_BYTES):
                text = data.decode(errors="replace").rstrip("\r\n")
                # Of a progress bar that draws over itself, only what it drew last.
                self._on_line(self.name, text.rsplit("\r", 1)[-1])

    def _wait(self) -> None:
        self._handle.wait()
        self.cpu_s = _cpu_s(self.pid)
        # Not yet reaped, so the group is still ours: what the process left behind ends with it.
        self._handle.send_group(signal.SIGKILL)
        _keeper.release(self.pid)
        self._handle.close()
        self.exit_code = shell_code(self._process.wait())
        self._reader.join(DRAIN_S)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._on_exit(self)


def _executed(
    command: Sequence[str], environment: Mapping[str, str], *, with_stdin: bool
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        tied(command),
        stdin=subprocess.PIPE if with_stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        process_group=0,
    )


def _cpu_s(pid: int) -> float | None:
    """Of a process that is not reaped; columns 14 to 17 of proc(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
