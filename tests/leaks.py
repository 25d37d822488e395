"""A plugin of pytest: a test that leaves a process behind fails, with what it left.

Counted is what began in the test or its own fixtures; what a fixture of a module or session starts is that
fixture's. Processes are looked for in /proc, where there is one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ps_lab.process_handle import ProcessHandle

GRACE_S = 30.0  # for what is ending; a test that leaves nothing waits for nothing
# Processes that a library keeps until its own process ends.
PROCESSES = (
    "ps_lab.keeper",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "torch_shm_manager",
)
HERE = Path("/proc/self")

Process = tuple[int, str]  # number, and when it began: together one process


def descendants() -> dict[Process, str]:
    """Our processes and theirs, and the command of each."""
    found: dict[Process, str] = {}
    queue = _children(HERE)
    while queue:
        pid = queue.pop()
        place = Path("/proc") / pid
        with contextlib.suppress(OSError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if fields[0] not in "ZX":
                found[int(pid), fields[19]] = command.strip()
            queue += _children(place)
    return found


def _children(process: Path) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(OSError):
        for task in (process / "task").iterdir():
            with contextlib.suppress(OSError):
                found += (task / "children").read_text().split()
    return found


class Leaks:
    """What there was before a test, and what fixtures of more than one test have started."""

    def __init__(self) -> None:
        self._kept: set[Process] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._kept = set(descendants())
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = set(descendants())
        try:
            return (yield)
        finally:
            self._kept |= set(descendants()) - before

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        done = yield
        left = list(self._left(time.monotonic() + GRACE_S))
        assert not left, "it leaves behind:\n" + "\n".join(left)
        return done

    def _left(self, until_s: float) -> Iterator[str]:
        for process, command in descendants().items():
            if process in self._kept or any(word in command for word in PROCESSES):
                continue
            with contextlib.suppress(ProcessLookupError):
                handle = ProcessHandle(process[0])
                ended = handle.wait(max(until_s - time.monotonic(), 0.0))
                handle.close()
                if not ended and process in descendants():
                    yield f"{process[0]}: {command}"


def pytest_configure(config: pytest.Config) -> None:
    if HERE.exists():
        config.pluginmanager.register(Leaks())
