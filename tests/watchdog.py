"""A plugin of pytest: no run of the tests hangs, and none ends without saying why.

Each process of pytest has a `watcher` beside it, which ends it where a test takes longer than its limit (that
of pytest-timeout, which needs the GIL) and `MARGIN_S`. Under xdist the process that hands out the tests is
watched, too: it is ended where it hears of no test for `QUIET_S`. What became of a process that ran tests is
said with the test that was lost. With `--timeout 0`, as under a debugger, nothing is bounded.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.watcher import END

ROOT = str(Path(__file__).resolve().parents[1])
RUN = f"import sys; sys.path.insert(0, {ROOT!r}); from tests.watcher import main; main({{pid}})"
MARGIN_S = 60.0  # for a test's end after pytest-timeout has failed it: fixtures may wait for processes
QUIET_S = 720.0  # whatever is no test: more than the longest test may take, also with `make stress`
EXIT_LIMIT_S = 10.0  # from a broken pipe until the process behind it has ended


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watchdog(config))
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(Deaths())


class Watchdog:
    """Tells the watcher what this process is at."""

    def __init__(self, config: pytest.Config) -> None:
        self._limit_s = float(config.getoption("timeout") or config.getini("timeout") or 0.0)
        self._plugins = config.pluginmanager
        self._stderr = os.dup(2)  # before a test's output is captured
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", RUN.format(pid=os.getpid())],
            stdin=subprocess.PIPE,
            stdout=self._stderr,
            stderr=self._stderr,
            start_new_session=True,
        )
        self._at("the collection of tests", QUIET_S)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        mark = item.get_closest_marker("timeout")
        limit_s = self._limit_s if mark is None else float(mark.args[0])
        self._at(item.nodeid, limit_s + MARGIN_S)
        self._show_stacks_at_sigterm()
        done = yield
        self._at("a pause between tests", 0.0)
        return done

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self._hands_out():
            self._at(f"waiting for tests, {nodeid} the last that began", QUIET_S)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._hands_out():
            self._at(f"waiting for tests, {report.nodeid} the last of which it heard", QUIET_S)

    def pytest_sessionfinish(self) -> None:
        self._at("the end of the session", QUIET_S)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        faulthandler.enable(file=self._stderr)  # again: pytest has just ended its own
        self._at(END, QUIET_S)

    def _show_stacks_at_sigterm(self) -> None:
        """SIGTERM shows what all threads were doing before it ends the process: one may have sent it."""
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            faulthandler.unregister(signal.SIGTERM)
            faulthandler.register(signal.SIGTERM, file=self._stderr, all_threads=True, chain=True)

    def _hands_out(self) -> bool:
        """Whether the tests run in other processes."""
        return bool(self._plugins.hasplugin("dsession"))

    def _at(self, what: str, limit_s: float) -> None:
        assert self._watcher.stdin is not None
        limit_s = limit_s if self._limit_s else 0.0
        self._watcher.stdin.write(f"{limit_s} {what}\n".encode(errors="replace"))
        self._watcher.stdin.flush()


class Deaths:
    """Says how processes of xdist ended that should not have."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            print(f"\n[{node.gateway.id}] {how_it_ended(node)}", file=sys.stderr, flush=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: Any) -> None:
        report.longrepr = f"{report.longrepr}\n{how_it_ended(report.node)}"


def how_it_ended(node: Any) -> str:
    """For people; waits for the end, as the pipe to it may have broken before."""
    process: subprocess.Popen[bytes] = node.gateway._io.popen  # nothing else of xdist or execnet knows it
    try:
        code = process.wait(EXIT_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"its process {process.pid} lives, but does not answer"
    if code >= 0:
        return f"its process {process.pid} exited with code {code}"
    return f"its process {process.pid} was ended by {signal.Signals(-code).name}{HINTS.get(-code, '')}"


HINTS = {
    signal.SIGABRT: "; faulthandler has written its stacks to stderr",
    signal.SIGKILL: "; the kernel's log says so where memory had run out",
}
