"""A process that has imported torch once, and forks: each child runs one of the project's commands.

Importing torch and the commands takes 2 s of a core; a fork takes 20 ms, and what comes out is a process like
any other, with its own pid, group, signals and exit code. Linux only: elsewhere a fork without exec is not
safe, and `ForkServer.serves` says so.

    the command (ForkServer)  --requests, each with the child's descriptors-->  the fork server (`main`)
                                                                                  | fork
    Forked  <--pid, then exit code; it lets go, then the child is reaped-->  one watcher per child
                                                                                  | fork
                                                                                the child

The number of a child is not given away before its `Forked` has let go: a late signal meets nobody else. The
fork server, a watcher and a child each die with the process above them, however that ends. It must not know
what the commands do: a child runs the entry point of the installed command of that name, a script, or a
module.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, BinaryIO, Never

from ps_wire.errors import StartLimitExceeded
from ps_wire.process.die_with_parent import die_with
from ps_wire.process.forking import begin_child, preload

COMMANDS = ("ps-server", "ps-worker")
MODULE = "-m"  # in whose place a module finds its file as `sys.argv[0]`
# Imported before the first fork: what the commands import late, since `--help` needs none of it.
PRELOADED = ("ps_worker", "ps_worker.cli", "ps_server.process.server")
MAX_REQUEST_BYTES = 8 << 20  # of a command and its environment; the kernel lets an exec have 2 MiB
START_LIMIT_S = 300.0  # until all is imported: 4 s; more than 40 s beside nine busy processes on two cores
_LENGTH = struct.Struct("!Q")
_DESCRIPTORS = ("the watcher's link", "stdin", "output")  # that come with a request

_ROOT = str(Path(__file__).resolve().parents[2])
_PROGRAM = (
    f"import sys; sys.path[0] = {_ROOT!r}; "
    "from ps_lab.cluster.fork_server import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)


class ForkServer:
    """The command's end. Thread-safe; its process is started with the first child.

    Made once for a command (`shared`), since what it costs is the first start. That is to come from a thread
    that lives as long as it should (see `die_with_parent`).
    """

    def __init__(self, program: str | None = None, *, link: socket.socket | None = None) -> None:
        """Starts nothing yet.

        Args:
            program: the fork server's, which gets two arguments as `main` does; default: `main`.
            link: to one that runs already, and ends when this is closed.
        """
        self._program = _PROGRAM if program is None else program
        self._lock = threading.Lock()  # guards all below; held while a request is written
        self._process: subprocess.Popen[bytes] | None = None
        self._link = link

    @staticmethod
    def serves(command: Sequence[str]) -> bool:
        """Whether it can start this command here: one of `COMMANDS`, a script or a module of this Python."""
        return (
            sys.platform == "linux"
            and hasattr(os, "pidfd_open")  # a child is no child of ours, so only a pidfd can be waited for
            and (Path(command[0]).name in COMMANDS or _is_of_python(command))
        )

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], *, with_stdin: bool = False
    ) -> Forked:
        """Forks a child that runs a command, in a process group of its own.

        Blocks until the child is there: at the first time until the fork server has imported all.

        Args:
            command: path of one of `COMMANDS`, or of this Python with a script's or `-m` and a module's name;
                and its arguments.
            environment: all of it.
            with_stdin: its stdin is a pipe; else it is empty.

        Raises:
            OSError: arguments and environment are too large, or the fork server ended.
            StartLimitExceeded: it does not start within `START_LIMIT_S`.
        """
        argv = list(command[1:]) if _is_of_python(command) else [Path(command[0]).name, *command[1:]]
        request = json.dumps(
            {"argv": argv, "environment": dict(environment), "cwd": str(Path.cwd())}
        ).encode()
        if len(request) > MAX_REQUEST_BYTES:
            raise OSError(errno.E2BIG, f"arguments and environment of {argv[0]} take {len(request)} bytes")
        with contextlib.ExitStack() as ends:  # those of the child, which are ours no longer when it has them
            reading, writing = os.pipe()
            output = os.fdopen(reading, "rb")
            ends.callback(os.close, writing)
            stdin: BinaryIO | None = None
            if with_stdin:
                child_reads, we_write = os.pipe()
                stdin = os.fdopen(we_write, "wb")
            else:
                child_reads = os.open(os.devnull, os.O_RDONLY)
            ends.callback(os.close, child_reads)
            link, watcher = socket.socketpair()
            ends.callback(watcher.close)
            try:
                with self._lock:
                    control = self._started(environment)
                    socket.send_fds(
                        control, [_LENGTH.pack(len(request))], [watcher.fileno(), child_reads, writing]
                    )
                    control.sendall(request)
                pid = _pid_of_child(link, Path(command[0]).name)
            except BaseException:
                for opened in (output, stdin, link):
                    if opened is not None:
                        opened.close()
                raise
            return Forked(pid, link, output, stdin)

    def close(self) -> None:
        """Ends it and all that it has started; nothing happens if it was never started."""
        with self._lock:
            if self._link is not None:
                self._link.close()
            if self._process is not None:
                self._process.wait()
            self._process = self._link = None

    def _started(self, environment: Mapping[str, str]) -> socket.socket:
        if self._link is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", self._program, str(theirs.fileno()), str(os.getpid())],
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            self._link = ours
            atexit.register(self.close)
        return self._link


class Forked:
    """A child of the fork server, with what `subprocess.Popen` would have of it.

    Attributes:
        pid: its process, and its group.
        stdout: what it writes, to stdout and stderr.
        stdin: what it reads, if anything.
    """

    def __init__(self, pid: int, link: socket.socket, stdout: BinaryIO, stdin: BinaryIO | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stdin = stdin
        self._link = link
        self._code: int | None = None

    def wait(self) -> int:
        """Waits for its end and lets go of its number; negative: the signal that ended it.

        Not from two threads at once.
        """
        if self._code is None:
            with self._link:
                try:
                    self._code = int(_line(self._link))
                except (OSError, ValueError):
                    self._code = -signal.SIGKILL  # its watcher is gone, and it with it
                with contextlib.suppress(OSError):
                    self._link.shutdown(socket.SHUT_WR)
                    self._link.recv(1)  # it is reaped
        return self._code


def _is_of_python(command: Sequence[str]) -> bool:
    program, *words = command
    return program == sys.executable and (
        (len(words) > 0 and words[0].endswith(".py")) or (len(words) > 1 and words[0] == MODULE)
    )


def _pid_of_child(link: socket.socket, name: str) -> int:
    """Waits until the fork server has forked it; `name`: of the command, for people."""
    link.settimeout(START_LIMIT_S)
    try:
        pid = int(_line(link))
    except TimeoutError:
        raise StartLimitExceeded(
            f"{name} did not start within {START_LIMIT_S:g} s: Python has not imported all that it needs; "
            "this machine is too busy, or its memory is full"
        ) from None
    link.settimeout(None)
    return pid


def _line(link: socket.socket) -> bytes:
    """Reads until the line's end, and no byte of the next line."""
    data = b""
    while not data.endswith(b"\n"):
        more = link.recv(1)
        if not more:
            raise ConnectionError("the fork server ended")
        data += more
    return data


shared = ForkServer()

# -- the fork server's own process -------------------------------------------------------------------------


def main(control_fd: int, parent: int) -> None:
    """Serves until the command has closed its end or has ended, then ends everything that it has started."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=control_fd), preload(PRELOADED))
    os._exit(0)  # the command waits for it: to take torch apart takes 0.15 s, and nothing is buffered here


def serve(control: socket.socket, threads: int, prepare: Callable[[], None] = lambda: None) -> None:
    """Takes requests until the other end is closed.

    Args:
        control: each request is a length, with the descriptors of the watcher's link, of stdin and of the
            output; then a JSON object of that length: `argv`, `environment`, `cwd`.
        threads: of torch in a child whose environment says nothing of them.
        prepare: called in each child before its command begins.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers are reaped by the kernel
    while True:
        head, descriptors, _, _ = socket.recv_fds(control, _LENGTH.size, len(_DESCRIPTORS))
        if not head:
            return
        (length,) = _LENGTH.unpack(head)
        if len(descriptors) != len(_DESCRIPTORS) or length > MAX_REQUEST_BYTES:
            raise ValueError(f"a request of {length} bytes with {len(descriptors)} descriptors")
        request = json.loads(_exactly(control, length))
        me = os.getpid()
        if os.fork() == 0:
            control.close()
            die_with(me)
            _watch(request, descriptors, threads, prepare)
        for descriptor in descriptors:
            os.close(descriptor)


def _watch(
    request: dict[str, Any], descriptors: Sequence[int], threads: int, prepare: Callable[[], None]
) -> Never:
    """Starts one child, reports its end, and reaps it when the other side has let go."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # what comes for the child is not ignored
    link_fd, stdin, output = descriptors
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(link_fd)
        _become(request, stdin, output, me, threads)
        _run_command(request["argv"][0], prepare)
    os.close(stdin)
    os.close(output)
    with contextlib.suppress(OSError):  # both sides say so: who is first is not known
        os.setpgid(pid, pid)
    link = socket.socket(fileno=link_fd)
    code = 0
    with contextlib.suppress(OSError):
        link.sendall(f"{pid}\n".encode())
        # Not reaped yet: else the number could soon be that of a process or thread of anybody, which a late
        # signal would meet.
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        link.sendall(f"{code}\n".encode())
        select.select([link], [], [])
        os.waitpid(pid, 0)
    os._exit(0)


def _run_command(name: str, prepare: Callable[[], None]) -> Never:
    """The child: runs the command and ends as the interpreter would, with what is left for the exit."""
    import traceback  # noqa: PLC0415

    code = 0
    try:
        prepare()
        command = _entry_point(name)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        command()
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - what the interpreter does with one
        traceback.print_exc()
        code = 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined] # joins threads that are no daemons
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _become(request: dict[str, Any], stdin: int, output: int, parent: int, threads: int) -> None:
    """Does what an exec would have done: group, signals, descriptors, environment, own states."""
    os.setpgid(0, 0)
    die_with(parent)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):  # Ctrl-C: as while a process is loaded
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.dup2(stdin, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 256)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the process's own
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.argv = list(request["argv"])
    command = sys.argv[0]
    if command == MODULE:
        sys.path[0] = request["cwd"]
    else:
        sys.path[0] = str(Path(command).parent if command.endswith(".py") else Path(sys.executable).parent)
    begin_child(threads)


def _entry_point(command: str) -> Callable[[], object]:
    if command.endswith(".py"):
        return lambda: runpy.run_path(command, run_name="__main__")
    if command == MODULE:
        module = sys.argv.pop(1)
        return lambda: runpy.run_module(module, run_name="__main__", alter_sys=True)
    (found,) = entry_points(group="console_scripts", name=command)
    loaded: Callable[[], object] = found.load()
    return loaded


def _exactly(link: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        more = link.recv(min(length - len(data), 1 << 16))
        if not more:
            raise ConnectionError("a request broke off")
        data += more
    return bytes(data)
