"""A process that has imported torch once, and forks: each child runs one of the project's commands.

Importing torch takes 2 s of a core; a fork takes 20 ms, and what comes out is a process like any other, with
its own pid, signals and exit code. Run as a script with the path of a Unix socket. Each connection asks for
one child: a JSON object, and with it the descriptor for the child's output. Back come lines: its pid, then
its exit code (negative: killed by that signal). The pid stays the child's until the other side has shut its
end of the connection; then the connection ends. All of it ends when stdin does. More arguments are names of
modules that are imported before the first fork, too. Modules that a child's TESTS_INSTALL names are imported
in it, and their `install()` is called, before its command begins.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any


def child(request: dict[str, Any], output: int) -> None:
    """Becomes the command; returns only by exception."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as while a process is loaded
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.dup2(output, 1)
    os.dup2(output, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.closerange(3, 64)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["argv"]
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - the process's own
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    if names := os.environ.get("TESTS_INSTALL"):
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
        for name in names.split(","):
            importlib.import_module(name).install()
    command = importlib.import_module(f"{sys.argv[0].replace('-', '_')}.cli")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command.main()


def run_child(request: dict[str, Any], output: int) -> None:
    """As the interpreter would: exit code, traceback, atexit functions. Never returns."""
    import atexit  # noqa: PLC0415
    import threading  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    code = 0
    try:
        child(request, output)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - what the interpreter does with one
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def watch(link: socket.socket) -> None:
    """Starts one child and reports its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, descriptors, _, _ = socket.recv_fds(link, 1 << 20, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # what comes for the child is not ignored
    pid = os.fork()
    if pid == 0:
        link.close()
        run_child(json.loads(data), descriptors[0])
    os.close(descriptors[0])
    link.sendall(f"{pid}\n".encode())
    # Not reaped yet: else the number could soon be that of a process or thread of anybody, which a late
    # signal would meet.
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    link.sendall(f"{code}\n".encode())
    link.recv(1)
    os.waitpid(pid, 0)


def main() -> None:
    """Serves until stdin ends, then ends everything that it has started."""
    # Else every child would import these: torch's optimizers bring `torch._dynamo`, 1 s, with the first one.
    for name in ("ps_worker.cli", "ps_server.process.server", "torch._dynamo", *sys.argv[2:]):
        importlib.import_module(name)
    gc.freeze()  # a collection in a child would copy all pages of torch's objects
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(64)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([sys.stdin, listener], [], [])
        if sys.stdin in ready:
            os.killpg(0, signal.SIGKILL)
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            watch(link)
            os._exit(0)
        link.close()


if __name__ == "__main__":
    main()
