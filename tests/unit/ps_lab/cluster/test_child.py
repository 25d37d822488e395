"""A child process: its lines, its end, and that nothing of it stays."""

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ps_lab.cluster.child import LINE_BYTES, Child
from ps_wire.process import die_with_parent
from tests.unit.ps_lab.cluster.gone import wait_gone
from tests.until import LIMIT_S


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves a process that holds a child's output open: all of it comes before the end."""
    monkeypatch.setattr("ps_lab.cluster.child.DRAIN_S", LIMIT_S)


class Recorded:
    """A child whose lines and end can be waited for."""

    def __init__(self, code: str, *, with_stdin: bool = False) -> None:
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.ends: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.child = Child(
            name="worker 0",
            command=[sys.executable, "-S", "-u", "-c", code],
            environment=dict(os.environ),
            on_line=lambda _name, line: self.lines.put(line),
            on_exit=lambda child: self.ends.put(child.exit_code),
            with_stdin=with_stdin,
        )

    def all_lines(self) -> list[str]:
        """Its lines, after its end."""
        return [self.lines.get_nowait() for _ in range(self.lines.qsize())]


@pytest.fixture(name="start")
def _start() -> Iterator[type[Recorded]]:
    started: list[Recorded] = []

    class Started(Recorded):
        def __init__(self, code: str, *, with_stdin: bool = False) -> None:
            super().__init__(code, with_stdin=with_stdin)
            started.append(self)

    yield Started
    for recorded in started:
        recorded.child.kill()
        recorded.child.join()


def test_every_line_arrives_before_the_end_and_the_last_needs_no_newline(start: type[Recorded]) -> None:
    run = start("import sys\nprint('one')\nsys.stderr.write('two\\n')\nsys.stdout.write('three')")
    assert run.ends.get(timeout=LIMIT_S) == 0
    assert run.all_lines() == ["one", "two", "three"]


def test_of_a_line_that_is_drawn_over_only_the_last_drawing_counts(start: type[Recorded]) -> None:
    run = start("print('10%\\r20%\\r30%')")
    assert run.ends.get(timeout=LIMIT_S) == 0
    assert run.all_lines() == ["30%"]


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)],
)
def test_its_exit_code_is_that_of_a_shell(start: type[Recorded], code: str, exit_code: int) -> None:
    assert start(code).ends.get(timeout=LIMIT_S) == exit_code


def test_it_has_the_pid_that_its_command_sees_and_a_group_of_its_own(start: type[Recorded]) -> None:
    run = start("import os; print(os.getpid(), os.getpgid(0))")
    run.ends.get(timeout=LIMIT_S)
    assert run.all_lines() == [f"{run.child.pid} {run.child.pid}"]


def test_terminate_reaches_it_and_is_nothing_once_it_has_ended(start: type[Recorded]) -> None:
    run = start("import signal, sys\nsignal.signal(15, lambda *_: sys.exit(75))\nprint('up')\nsignal.pause()")
    assert run.lines.get(timeout=LIMIT_S) == "up"
    run.child.terminate()
    assert run.ends.get(timeout=LIMIT_S) == 75
    run.child.terminate()
    run.child.kill()


def test_a_line_without_an_end_comes_in_parts(start: type[Recorded]) -> None:
    """A child cannot fill our memory with it."""
    recorded = start("print('x' * 200_000, end='')")
    assert recorded.ends.get(timeout=LIMIT_S) == 0
    lines = recorded.all_lines()
    assert "".join(lines) == "x" * 200_000
    assert max(map(len, lines)) <= LINE_BYTES


def test_a_child_ends_with_who_started_it() -> None:
    """Also where that one was killed, and could end nothing itself."""
    code = (
        "import os, subprocess, sys\n"
        "command = [sys.executable, '-I', '-S', sys.argv[1], str(os.getpid()), sys.executable, '-S', '-c']\n"
        "child = subprocess.Popen([*command, 'import signal; print(flush=True); signal.pause()'],"
        " stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-S", "-c", code, die_with_parent.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.communicate()
    wait_gone(pid)


@pytest.mark.parametrize("killed", [True, False])
def test_what_it_started_ends_with_it(start: type[Recorded], killed: bool) -> None:
    then = "signal.pause()" if killed else "os._exit(0)"
    run = start(f"import os, signal\npid = os.fork()\nif pid == 0: signal.pause()\nprint(pid)\n{then}")
    grandchild = int(run.lines.get(timeout=LIMIT_S))
    if killed:
        run.child.kill()
    run.ends.get(timeout=LIMIT_S)
    wait_gone(grandchild)


def test_a_child_with_stdin_reads_what_it_is_told(start: type[Recorded]) -> None:
    recorded = start("import sys\nfor line in sys.stdin: print('told', line, end='')", with_stdin=True)
    for word in ("one", "zwei €"):
        recorded.child.tell(word)
        assert recorded.lines.get(timeout=LIMIT_S) == f"told {word}"


def test_a_child_that_has_ended_is_told_in_vain(start: type[Recorded]) -> None:
    recorded = start("", with_stdin=True)
    assert recorded.ends.get(timeout=LIMIT_S) == 0
    recorded.child.tell("anybody there?")


def test_a_child_without_stdin_reads_its_end_at_once(start: type[Recorded]) -> None:
    recorded = start("import sys; print(repr(sys.stdin.read()))")
    assert recorded.ends.get(timeout=LIMIT_S) == 0
    assert recorded.all_lines() == ["''"]
