"""A handle signals its process or nobody, whoever has the number by now."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from ps_lab.cluster import process_handle
from ps_lab.cluster.process_handle import ProcessHandle
from tests.until import LIMIT_S

FORKS = "import os, signal\npid = os.fork()\nif pid == 0: signal.pause()\nprint(pid, flush=True)\n"

TOO_EARLY_S = 0.2  # in which a close comes back that waits for nobody

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(name="start")
def _start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str = "import signal; signal.pause()") -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE, process_group=0
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(params=["pidfd", "number"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without pidfds."""
    if request.param == "number":
        monkeypatch.delattr(os, "pidfd_open")


@pytest.mark.usefixtures("kernel")
def test_a_signal_arrives_and_the_end_can_be_waited_for_and_reaped(start: Start):
    process = start()
    handle = ProcessHandle(process.pid)
    assert not handle.wait(0.05)
    handle.send(signal.SIGTERM)
    assert handle.wait(LIMIT_S)
    handle.close()
    assert process.wait(LIMIT_S) == -signal.SIGTERM


@pytest.mark.usefixtures("kernel")
def test_after_its_close_nothing_is_sent(start: Start, monkeypatch: pytest.MonkeyPatch):
    process = start()
    handle = ProcessHandle(process.pid)
    handle.close()
    handle.close()
    handle.send(signal.SIGKILL)
    handle.send_group(signal.SIGKILL)
    assert process.poll() is None


def test_who_has_the_number_now_gets_no_signal(start: Start, monkeypatch: pytest.MonkeyPatch):
    """The process was reaped behind the handle's back, and the number is another's."""
    process, other = start(""), start()
    handle, living = ProcessHandle(process.pid), ProcessHandle(other.pid)
    process.wait(LIMIT_S)
    monkeypatch.setattr(handle, "pid", other.pid)
    handle.send(signal.SIGKILL)
    handle.send_group(signal.SIGKILL)
    assert not living.wait(0.1)
    living.close()
    handle.close()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("lives", [True, False])
def test_its_group_ends_with_it_and_after_it(start: Start, lives: bool):
    process = start(FORKS + ("signal.pause()" if lives else ""))
    handle = ProcessHandle(process.pid)
    other = pidfd_of(process)
    if not lives:
        assert handle.wait(LIMIT_S)
    handle.send_group(signal.SIGKILL)
    assert other.wait(LIMIT_S)
    other.close()
    handle.close()


def test_before_linux_6_9_the_group_has_its_number(start: Start, monkeypatch: pytest.MonkeyPatch):
    def refuses(*_: object) -> None:
        raise OSError(errno.EINVAL, "no such flag")

    process = start(FORKS + "signal.pause()")
    handle, other = ProcessHandle(process.pid), pidfd_of(process)
    monkeypatch.setattr(signal, "pidfd_send_signal", refuses)
    handle.send_group(signal.SIGKILL)
    assert other.wait(LIMIT_S)
    other.close()
    handle.close()


def pidfd_of(process: subprocess.Popen[bytes]) -> ProcessHandle:
    """Of the process that it says it has started: no child of ours, so only a pidfd can be waited for."""
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pidfd_open", PIDFD_OPEN, raising=False)
        return ProcessHandle(pid)


PIDFD_OPEN = os.pidfd_open


def test_where_pidfds_are_forbidden_it_goes_by_the_number(start: Start, monkeypatch: pytest.MonkeyPatch):
    def refuses(_pid: int) -> int:
        raise OSError(errno.EPERM, "seccomp")

    monkeypatch.setattr(os, "pidfd_open", refuses)
    process = start()
    handle = ProcessHandle(process.pid)
    handle.send(signal.SIGTERM)
    assert handle.wait(LIMIT_S)
    handle.close()


def test_there_is_no_handle_of_what_is_not_there(start: Start):
    process = start("")
    process.wait(LIMIT_S)
    with pytest.raises(ProcessLookupError):
        ProcessHandle(process.pid)


def test_a_close_waits_for_a_signal_that_is_being_sent(start: Start, monkeypatch: pytest.MonkeyPatch):
    """Else the process could be reaped, and its number given away, between the look and the signal."""
    process = start()
    handle = ProcessHandle(process.pid)
    sending, go_on, order = threading.Event(), threading.Event(), []

    def slowly(*given: object) -> None:
        sending.set()
        assert go_on.wait(LIMIT_S)
        order.append("sent")

    monkeypatch.setattr(process_handle.signal, "pidfd_send_signal", slowly)
    sender = threading.Thread(target=handle.send, args=(signal.SIGTERM,))
    sender.start()
    assert sending.wait(LIMIT_S)
    closer = threading.Thread(target=lambda: (handle.close(), order.append("closed")))
    closer.start()
    closer.join(TOO_EARLY_S)
    go_on.set()
    sender.join(LIMIT_S)
    closer.join(LIMIT_S)
    assert order == ["sent", "closed"]
