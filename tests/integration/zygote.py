"""The fork server of the tests: `ps_lab.cluster.fork_server`, whose children have modules installed.

Its program, run with the numbers of a socket and of the process that started it, and then with names of
modules that are imported before the first fork, too, if they are installed. Modules that a child's
TESTS_INSTALL names are imported in it, and their `install()` is called, before its command begins. A `ps-lab`
has a fork server of its own at once, which need not import all anew; so has a module (`python -m`).
"""

import faulthandler
import importlib
import importlib.util
import os
import signal
import socket
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
# What the commands import late, which is most of what a short process does; the second ones where they are.
LATE = ("ps_server.cli", "ps_lab.cli", "grpc._channel", "encodings.idna", "numpy.ctypeslib", "rich.markdown")
WHERE_INSTALLED = ("pydantic.type_adapter", "typer._adapters")


def install() -> None:
    """What a child's environment names."""
    for name in filter(None, os.environ.get("TESTS_INSTALL", "").split(",")):
        importlib.import_module(name).install()


def is_installed(module: str) -> bool:
    """Whether there is a module of that name."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def lend_fork_server(threads: int) -> None:
    """Forks another fork server from this process, and has the command or module that comes use it."""
    from ps_lab.cluster import fork_server  # noqa: PLC0415
    from ps_wire.process import die_with_parent  # noqa: PLC0415

    sys.path.insert(0, ROOT)  # a child has its command's path, on which there need not be tests
    from tests.integration import processes  # noqa: PLC0415

    sys.path.remove(ROOT)
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    if os.fork() == 0:
        try:
            ours.close()
            os.setsid()
            die_with_parent.die_with(parent)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            fork_server.serve(theirs, threads, install)
        finally:
            os._exit(0)
    theirs.close()
    fork_server.shared = processes.lent = fork_server.ForkServer(link=ours)


def main() -> None:
    """Serves until the tests have closed their end, or have ended."""
    sys.path.insert(0, ROOT)
    from ps_lab.cluster import fork_server  # noqa: PLC0415 - found now
    from ps_wire.process import die_with_parent, forking  # noqa: PLC0415 - found now

    die_with_parent.die_with(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    installed = filter(is_installed, (*WHERE_INSTALLED, *sys.argv[3:]))
    threads = forking.preload((*fork_server.PRELOADED, *LATE, *installed))

    def prepare() -> None:
        faulthandler.enable()  # what crashes in C is to say where, in its output
        install()
        if sys.argv[0] in ("ps-lab", fork_server.MODULE):
            lend_fork_server(threads)

    fork_server.serve(control, threads, prepare)


if __name__ == "__main__":
    main()
