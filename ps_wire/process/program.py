"""The first moments of every command: until it has been imported, Ctrl-C ends its process without a word.

To import torch takes seconds. A KeyboardInterrupt in there is a traceback, or is taken for the failure of an
import that has a fallback and is lost, or ends in `std::terminate`. So the signal has its default action
until then. This module imports nothing that takes long.
"""

from __future__ import annotations

import gc
import signal
import sys
from importlib.metadata import entry_points

PROGRAMS = "ps.programs"  # group of entry points: name of the command -> its main function
CTRL_C = 130


def ps_server() -> None:
    """Runs `ps-server`."""
    run("ps-server")


def ps_worker() -> None:
    """Runs `ps-worker`."""
    run("ps-worker")


def ps_lab() -> None:
    """Runs `ps-lab`."""
    run("ps-lab")


def run(name: str) -> None:
    """Imports a command and runs it; where SIGINT is ignored it stays so."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    (entry,) = entry_points(group=PROGRAMS, name=name)
    main = entry.load()
    gc.freeze()  # torch's objects, which the interpreter would look through at its end: 0.5 of 0.65 s
    try:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        main()
    except KeyboardInterrupt:
        sys.exit(CTRL_C)
