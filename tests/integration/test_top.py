"""`ps-lab top` over real servers and workers, on a terminal."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from ps_lab.cluster.cluster import command_path
from ps_lab.cluster.process_handle import ProcessHandle
from ps_lab.status.observer import Observer, ask
from ps_wire.errors import ServerUnreachable, ShardMismatch
from tests.until import LIMIT_S, until

from . import endless
from .processes import ENVIRONMENT, TETHER, Start, ended, run
from .servers import Servers, fresh_job

pytestmark = pytest.mark.integration


class OnTerminal:
    """A command whose stdout is a terminal.

    Attributes:
        text: all that it has written.
    """

    def __init__(self, *command: str) -> None:
        ours, theirs = pty.openpty()
        os.set_inheritable(theirs, True)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", TETHER, str(os.getpid()), command_path(command[0]), *command[1:]],
            env=ENVIRONMENT | {"TERM": "xterm", "COLUMNS": "120", "LINES": "60"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._ours = ours
        self._handle = ProcessHandle(self._process.pid)
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # nobody writes any more
                return
            if not data:
                return
            self.text += data.decode(errors="replace")

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self._handle.send(signal.SIGINT)
        code = self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        self._handle.close()
        os.close(self._ours)
        return code


def test_lanes_move_while_a_job_trains_and_ctrl_c_ends_it(cluster: Servers, spawn: Start, tmp_path: Path):
    job = fresh_job()
    end = tmp_path / "end"
    workers = [
        spawn(
            "ps-worker",
            *("--servers", cluster.option, "--job", job, "--consistency", "ssp:2", "--num-workers", "2"),
            *(endless.PATH, str(end)),
        )
        for _ in range(2)
    ]
    top = OnTerminal("ps-lab", "top", "--servers", cluster.option, "--job", job)
    for word in ("ssp:2", "●", "steps/s", "staleness", "event=join", "updates/s", cluster.addresses[1]):
        until(lambda word=word: word in top.text, f"{word} is shown")
    assert top.interrupt() == 130
    assert "\x1b[?1049l" in top.text  # the screen of before
    assert "Traceback" not in top.text
    end.touch()
    assert [worker.wait_end() for worker in workers] == [0, 0]


def test_without_a_terminal_or_servers_it_ends_with_one_line(cluster: Servers, spawn: Start):
    code, line = ended(spawn("ps-lab", "top", "--servers", cluster.option))
    assert (code, "stdout is none" in line) == (64, True)


def test_channels_stay_open_and_all_servers_are_asked_in_one_look(cluster: Servers):
    with Observer(tuple(cluster.addresses), timeout_s=LIMIT_S) as observer:
        assert [it.shard for it in observer.look().shards] == [0, 1]
        channels = dict(observer._channels)
        observer.look()
        assert observer._channels == channels
    assert [it.address for it in ask(tuple(cluster.addresses), timeout_s=LIMIT_S).shards] == cluster.addresses


def test_a_look_that_failed_begins_with_new_channels(cluster: Servers):
    """So that certificates of then are shown, and gRPC's own pause is not waited for."""
    with Observer((cluster.addresses[0], "127.0.0.1:1"), timeout_s=LIMIT_S) as observer:
        with pytest.raises(ServerUnreachable, match=r"127\.0\.0\.1:1"):
            observer.look()
        assert not observer._channels


def test_servers_in_the_wrong_order_are_named(cluster: Servers):
    with pytest.raises(ShardMismatch, match="stands in place 0"):
        ask(tuple(reversed(cluster.addresses)), timeout_s=LIMIT_S)


def test_the_page_shows_the_lanes_in_a_browser(cluster: Servers, spawn: Start, tmp_path: Path):
    """A real one, without a window; the page's title says what it has drawn of the events."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser is installed (Debian: chromium)")
    job = fresh_job()
    end = tmp_path / "end"
    worker = spawn(
        "ps-worker",
        *("--servers", cluster.option, "--job", job, "--consistency", "ssp:2"),
        *(endless.PATH, str(end)),
    )
    worker.wait_line("data goes over")
    top = spawn("ps-lab", "top", "--servers", cluster.option, "--job", job, "--serve", "0")
    url = top.wait_line(r"http://\S+")[0]
    shown = run(
        browser,
        *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"),
        *(f"--user-data-dir={tmp_path / 'profile'}", url),
    )
    port = shown.wait_line(r"DevTools listening on ws://[^:]+:(\d+)")[1]

    def titles() -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=LIMIT_S) as reply:
            return [page["title"] for page in json.load(reply)]

    until(lambda: "1 workers, 1 jobs, 2 servers" in titles(), "what came as an event is drawn", pause_s=0.2)
    shown.kill()
    top.signal(signal.SIGINT)
    assert top.wait_end() == 130
    assert "Traceback" not in top.text
    end.touch()
    assert worker.wait_end() == 0
