"""Errors that end a run before its time, and the exit codes that follow.

    PsError
    ├── ProcessFailed    a server or worker ended by itself and should not have
    ├── Interrupted      a signal asked the run to stop
    ├── OutputClosed     nobody reads our stdout any more
    ├── OutputFailed     a file of a run or of a report cannot be written
    ├── CommandMissing   one of the project's own commands is not installed
    ├── LibraryMissing   a command needs a library that is an extra
    ├── DemoFailed       the demo ran and did not reach what it must, or cannot run here
    ├── RunsFailed       runs of a comparison did; the others are done
    └── BenchFailed      a bench cannot run here, or one of its processes hangs

Errors of the servers pass through as they are.
"""

from __future__ import annotations

import signal

from ps_wire.errors import PsError


class ProcessFailed(PsError):
    """A server or worker ended by itself and should not have. Facts: `process`, `code`."""


class Interrupted(PsError):
    """A signal asked the run to stop. Fact: `signal`, its number."""


class OutputClosed(PsError):
    """Nobody reads our stdout any more."""


class OutputFailed(PsError):
    """A file of a run or of a report cannot be written: a disk is full. Fact: `file`."""


class CommandMissing(PsError):
    """One of the project's own commands is not installed. Fact: `command`."""


class LibraryMissing(PsError):
    """A command needs a library that is not installed; the message says how it is."""


class DemoFailed(PsError):
    """The demo cannot run here, or did not reach what it must."""


class RunsFailed(PsError):
    """Some runs of a comparison failed; the others are done. Fact: `failed`, how many."""


class BenchFailed(PsError):
    """A bench cannot run here, or one of its processes does not answer."""


def process_failed(process: str, code: int, *, before: str = "the workers did") -> ProcessFailed:
    """The error to raise for a process that ended with `code`, in the words of a shell.

    Args:
        process: its name.
        code: of its exit.
        before: what it should have outlived, if it ended well.
    """
    if code > 128 and code - 128 in set(signal.Signals):
        how = f"was ended by {signal.Signals(code - 128).name}"
    elif code == 0:
        how = f"ended before {before}"
    else:
        how = f"exited with code {code}"
    return ProcessFailed(f"{process} {how}", process=process, code=code)


def shell_code(returncode: int) -> int:
    """The code that a shell makes of that of `subprocess`: 128 + N for a death by signal N."""
    return returncode if returncode >= 0 else 128 - returncode


def exit_code_of(error: PsError) -> int:
    """The code that `ps-lab` ends with: the failed process's own, 130 for Ctrl-C, 75 for other signals."""
    if isinstance(error, ProcessFailed):
        return int(error.facts["code"] or 0) or 1
    if isinstance(error, Interrupted):
        return 130 if error.facts["signal"] == signal.SIGINT else 75
    return error.exit_code
