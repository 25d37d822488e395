"""Real processes of the project: their lines of output, their signals, their exit codes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

from ps_lab.cluster.cluster import command_path
from ps_lab.cluster.fork_server import ForkServer
from ps_lab.cluster.process_handle import ProcessHandle
from ps_wire.process import die_with_parent
from tests.until import LIMIT_S

TETHER = str(Path(die_with_parent.__file__))
ZYGOTE = str(Path(__file__).with_name("zygote.py"))
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PS_")} | {
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


class Process:
    """A running process.

    Attributes:
        pid: of the process itself.
        lines: of its output so far, stdout and stderr together.
    """

    def __init__(self, name: str, pid: int, output: BinaryIO, wait: Callable[[float], int]) -> None:
        self.name = name
        self.pid = pid
        self.lines: list[str] = []
        self._handle = ProcessHandle(pid)
        self._wait = wait
        self._waiting = threading.Lock()
        self._code: int | None = None
        self._seen = 0
        self._ended = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()

    def wait_line(self, pattern: str) -> re.Match[str]:
        """The next line that the pattern is found in; lines before it are passed over."""
        with self._changed:
            while True:
                while self._seen < len(self.lines):
                    self._seen += 1
                    if match := re.search(pattern, self.lines[self._seen - 1]):
                        return match
                assert not self._ended, f"{self.end} without {pattern!r}:\n{self.text}"
                assert self._changed.wait(LIMIT_S), f"{self.name} never said {pattern!r}:\n{self.text}"

    def wait_end(self, limit_s: float = LIMIT_S) -> int:
        """Its exit code, after its last line."""
        code = self._reap(limit_s)
        self._reader.join(LIMIT_S)
        return code

    @property
    def is_over(self) -> bool:
        """Whether it has said its last line."""
        with self._changed:
            return self._ended

    @property
    def end(self) -> str:
        """How it ended, for people; waits until it has."""
        return f"{self.name} {ending(self.wait_end())}"

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process; nothing happens if it has ended."""
        self._handle.send(number)

    def kill(self) -> None:
        """Ends it at once, if it has not ended; a child of it may live on, and hold its output open."""
        self._handle.send(signal.SIGKILL)
        self._reap(LIMIT_S)

    @property
    def text(self) -> str:
        """All its output."""
        return "\n".join(self.lines)

    def _reap(self, limit_s: float) -> int:
        with self._waiting:
            if self._code is None:
                assert self._handle.wait(limit_s), f"{self.name} does not end:\n{self.text}"
                self._handle.close()
                self._code = self._wait(limit_s)
            return self._code

    def _read(self, output: BinaryIO) -> None:
        with output:
            for line in output:
                with self._changed:
                    self.lines.append(line.decode(errors="replace").rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def ending(code: int) -> str:
    """What an exit code says to people; below 0 it is a signal."""
    return f"exited with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def start(*command: str, environment: Mapping[str, str] | None = None) -> Process:
    """Starts one of the project's installed commands; it dies with the test run, however that ends."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", TETHER, str(os.getpid()), command_path(command[0]), *command[1:]],
        env=ENVIRONMENT | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    return Process(" ".join(command), process.pid, process.stdout, process.wait)


def run(*command: str) -> Process:
    """A program that is not ours, by its path; it dies with the test run."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", TETHER, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    return Process(" ".join(command), process.pid, process.stdout, process.wait)


lent: ForkServer | None = None  # by the zygote that began this process: see `zygote.py`


class Zygote:
    """Starts the project's commands by forking; see `zygote.py`.

    In a process that another one has begun it is forked from that.
    """

    def __init__(self, *modules: str) -> None:
        """Modules, if they are installed, are imported once, for all its children."""
        run = f"runpy.run_path({ZYGOTE!r}, run_name='__main__')"
        self._server = lent or ForkServer(f"import runpy, sys; sys.argv += {list(modules)!r}; {run}")

    def start(self, *command: str, environment: Mapping[str, str] | None = None) -> Process:
        """As `start` above, in a hundredth of the time."""
        forked = self._server.start(command, ENVIRONMENT | dict(environment or {}))
        return Process(" ".join(command), forked.pid, forked.stdout, lambda _limit_s: forked.wait())

    def close(self) -> None:
        """Ends it and all that it has started."""
        self._server.close()


Start: TypeAlias = Callable[..., Process]


def living(folder: Path) -> list[ProcessHandle]:
    """The processes whose working directory is that folder; to be closed by who asks.

    A child that was forked has the zygote's environment and command line in `/proc`, and a folder of its own.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                handle = ProcessHandle(int(entry.name))  # first: then who is in the folder is this one
            except ProcessLookupError:
                continue
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                if (entry / "cwd").readlink() == folder:
                    found.append(handle)
                    continue
            handle.close()
    return found


def pids_in(folder: Path) -> set[int]:
    """The numbers of those."""
    found = living(folder)
    for handle in found:
        handle.close()
    return {handle.pid for handle in found}


def ended(process: Process) -> tuple[int, str]:
    """Exit code and the last line, which is all that a person needs: a refusal has no traceback."""
    code = process.wait_end()
    assert "Traceback" not in process.text, process.text
    return code, process.lines[-1]
