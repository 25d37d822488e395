"""The fork server: its children are processes like any other, and nothing of it stays."""

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ps_lab.cluster import fork_server
from ps_lab.cluster.child import Child
from ps_lab.cluster.cluster import command_path
from ps_lab.cluster.fork_server import Forked, ForkServer
from ps_lab.cluster.process_handle import ProcessHandle
from ps_wire.errors import StartLimitExceeded
from tests.until import LIMIT_S

from .gone import wait_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks without exec on Linux only")

ROOT = Path(__file__).resolve().parents[4]
# A child runs what CODE says before its command, which is `--help`: no torch, and quick.
RUN = textwrap.dedent(f"""
    import os, socket, sys
    sys.path[0] = {str(ROOT)!r}
    from ps_lab.cluster import fork_server
    from ps_wire.process import die_with_parent
    def prepare(): exec(os.environ.get("CODE", ""), dict(os=os, sys=sys))
    die_with_parent.die_with(int(sys.argv[2]))
    fork_server.serve(socket.socket(fileno=int(sys.argv[1])), 1, prepare)
""")

Fork = Callable[..., Forked]


@pytest.fixture(scope="module", name="server")
def _server() -> Iterator[ForkServer]:
    made = ForkServer(RUN)
    # Its process dies with the thread that starts it, and the first test may be one of many threads.
    first = made.start([command_path("ps-server"), "--help"], os.environ)
    assert said(first)
    assert first.wait() == 0
    yield made
    made.close()


@pytest.fixture(name="fork")
def _fork(server: ForkServer) -> Iterator[Fork]:
    started: list[Forked] = []

    def fork(code: str = "", *, with_stdin: bool = False, **environment: str) -> Forked:
        forked = server.start(
            [command_path("ps-server"), "--help"],
            {**os.environ, "CODE": code, **environment},
            with_stdin=with_stdin,
        )
        started.append(forked)
        return forked

    yield fork
    for forked in started:
        with contextlib.suppress(ProcessLookupError):  # it was waited for
            handle = ProcessHandle(forked.pid)
            handle.send_group(signal.SIGKILL)
            handle.close()
        forked.wait()
        for pipe in (forked.stdin, forked.stdout):
            if pipe is not None:
                pipe.close()


def said(forked: Forked) -> str:
    with forked.stdout as output:
        return output.read().decode()


def test_it_runs_the_installed_command(fork: Fork):
    forked = fork()
    assert "Starts one shard" in said(forked)
    assert forked.wait() == 0


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("sys.exit(3)", 3),
        ("sys.exit('no')", 1),
        ("raise ValueError('mine')", 1),
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("os.kill(os.getpid(), 15)", -signal.SIGTERM),
    ],
)
def test_its_end_is_that_of_a_process(fork: Fork, code: str, ends: int):
    forked = fork(code)
    output = said(forked)
    assert forked.wait() == ends
    assert ("ValueError: mine" in output) == ("mine" in code)
    assert ("no\n" in output) == ("no" in code)


def test_what_is_left_for_the_end_is_done_there(fork: Fork):
    code = """
        import atexit, threading
        atexit.register(print, "second")
        threading.Thread(target=lambda: (threading.main_thread().join(), print("first"))).start()
        sys.exit(4)
    """
    forked = fork(textwrap.dedent(code))
    assert said(forked) == "first\nsecond\n"
    assert forked.wait() == 4


def test_it_has_a_group_an_environment_and_a_folder_of_its_own(fork: Fork, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forked = fork("print(os.getpgrp() == os.getpid(), os.environ['MINE'], os.getcwd()); sys.exit()", MINE="7")
    assert said(forked) == f"True 7 {tmp_path}\n"
    assert forked.wait() == 0


def test_its_signals_are_as_after_an_exec(fork: Fork):
    code = """
        import signal
        numbers = signal.SIGTERM, signal.SIGCHLD, signal.SIGINT
        print([signal.getsignal(number) for number in numbers] == [signal.SIG_DFL] * 3)
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        sys.exit()
    """
    assert said(fork(textwrap.dedent(code))) == "True\nset()\n"


def test_it_runs_a_script_of_this_python_as_python_does(server: ForkServer, tmp_path: Path):
    """Its arguments, its folder first on the path, its name, its exit code."""
    (tmp_path / "beside.py").write_text("MINE = 7")
    script = tmp_path / "look.py"
    script.write_text("import sys, beside\nprint(__name__, sys.argv, beside.MINE)\nsys.exit(5)\n")
    command = [sys.executable, str(script), "--quick"]
    assert ForkServer.serves(command)
    assert not ForkServer.serves([sys.executable, "-c", "pass"])
    forked = server.start(command, os.environ)
    assert said(forked) == f"__main__ {[str(script), '--quick']} 7\n"
    assert forked.wait() == 5


def test_it_runs_a_module_of_this_python_as_python_does(server: ForkServer, tmp_path: Path, monkeypatch):
    """As `python -m`: found from the folder where it begins, with its file as `sys.argv[0]`."""
    (tmp_path / "beside.py").write_text("MINE = 7")
    module = tmp_path / "look.py"
    module.write_text("import sys, beside\nprint(__name__, sys.argv, beside.MINE)\nsys.exit(5)\n")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "look", "--quick"]
    assert ForkServer.serves(command)
    assert not ForkServer.serves(command[:2])
    forked = server.start(command, os.environ)
    assert said(forked) == f"__main__ {[str(module), '--quick']} 7\n"
    assert forked.wait() == 5


def test_it_reads_what_it_is_told(fork: Fork):
    forked = fork("print(input()); sys.exit()", with_stdin=True)
    assert forked.stdin is not None
    with forked.stdin as stdin:
        stdin.write(b"hello\n")
    assert said(forked) == "hello\n"
    assert fork("print(repr(sys.stdin.read())); sys.exit()").stdout.read() == b"''\n"


def test_children_hold_nothing_of_each_other(fork: Fork):
    """Whose output is read to its end does not wait for another's."""
    fork("import signal; signal.pause()")
    code = "print(sorted(os.listdir('/proc/self/fd'))); sys.exit()"
    assert said(fork(code)) == "['0', '1', '2', '3']\n"  # 3: the folder that is listed


def test_its_number_is_nobodys_before_it_is_let_go(fork: Fork):
    forked = fork("sys.exit(0)")
    said(forked)
    assert select.select([forked._link], [], [], LIMIT_S)[0], "its end is not told"
    assert Path(f"/proc/{forked.pid}").exists()
    assert forked.wait() == 0
    assert not Path(f"/proc/{forked.pid}").exists()


def test_its_group_ends_with_it(fork: Fork):
    forked = fork("import signal; print(os.fork() or 0, flush=True); signal.pause()")
    handle = ProcessHandle(forked.pid)
    first = int(forked.stdout.readline()) or int(forked.stdout.readline())
    handle.send_group(signal.SIGKILL)
    assert forked.wait() == -signal.SIGKILL
    wait_gone(first)
    handle.close()


def test_many_threads_may_start_children_at_once(fork: Fork):
    outputs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threads = [
        threading.Thread(target=lambda n=n: outputs.put(said(fork(f"print({n}); sys.exit()"))))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(outputs.get_nowait() for _ in threads) == [f"{n}\n" for n in range(8)]


def test_nothing_outlives_who_was_killed(tmp_path: Path):
    """Kill -9 of the command: fork server, watcher, child and the child's own child end."""
    starter = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from ps_lab.cluster.fork_server import ForkServer
server = ForkServer({RUN!r})
child = server.start(["ps-server"], dict(os.environ, CODE="import signal; signal.pause()"))
print(server._process.pid, child.pid, flush=True)
signal.pause()
"""
    process = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    process.kill()
    process.communicate()
    assert len(pids) == 2
    for pid in pids:
        wait_gone(pid)


def test_a_fork_server_that_was_killed_ends_its_children_and_says_so():
    server = ForkServer(RUN)
    command, environment = ["ps-server"], {**os.environ, "CODE": "import signal; signal.pause()"}
    child = server.start(command, environment)
    assert server._process is not None
    server._process.kill()
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
    with pytest.raises(OSError, match=r"fork server|Broken pipe|reset"):
        server.start(command, environment)
    server.close()


def test_after_its_close_it_starts_anew():
    server = ForkServer(RUN)
    for _ in range(2):
        child = server.start(["ps-server", "--help"], dict(os.environ))
        assert child.wait() == 0
        child.stdout.close()
        server.close()
    server.close()


def test_who_has_closed_it_does_not_wait_until_torch_is_taken_apart():
    program = """
import atexit, os, socket
from ps_lab.cluster import fork_server
fork_server.preload = lambda _: 1
atexit.register(lambda: print("taken apart", flush=True))
theirs, ours = socket.socketpair()
ours.close()
fork_server.main(theirs.detach(), os.getppid())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_a_fork_server_that_does_not_start_in_time_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fork_server, "START_LIMIT_S", 0.01)
    server = ForkServer("import time; time.sleep(1000)")
    with pytest.raises(StartLimitExceeded, match=r"ps-server did not start within 0\.01 s: "):
        server.start(["ps-server"], os.environ)
    assert server._process is not None
    server._process.kill()
    server.close()


def test_a_request_that_is_too_large_is_refused():
    with pytest.raises(OSError, match="environment"):
        ForkServer(RUN).start(["ps-server"], {"X": "x" * fork_server.MAX_REQUEST_BYTES})


def test_only_the_projects_commands_are_forked():
    assert ForkServer.serves([command_path("ps-worker"), "train.py"])
    assert not ForkServer.serves([sys.executable, "-c", "pass"])


def test_a_child_of_a_command_is_forked_and_read_as_any(monkeypatch: pytest.MonkeyPatch):
    """The real fork server, once: torch is there, no thread is, and the child's lines and end come."""
    server = ForkServer()
    monkeypatch.setattr(fork_server, "shared", server)
    monkeypatch.setattr("ps_lab.cluster.child.DRAIN_S", LIMIT_S)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    ended: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    child = Child(
        name="server",
        command=[command_path("ps-server"), "--help"],
        environment={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # its threads know of forks
        on_line=lambda _name, line: lines.put(line),
        on_exit=lambda child: ended.put(child.exit_code),
        fresh=False,
    )
    child.join()
    assert ended.get(timeout=LIMIT_S) == 0
    assert any("Starts one shard" in lines.get_nowait() for _ in range(lines.qsize()))
    assert server._process is not None
    process = Path(f"/proc/{server._process.pid}")
    assert len(list((process / "task").iterdir())) == 1, "a thread would not be there in a child"
    assert "libtorch" in (process / "maps").read_text()
    server.close()
