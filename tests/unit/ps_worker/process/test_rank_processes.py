"""Ranks as child processes: all are started, or none is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ps_wire.errors import ConfigurationRefused
from ps_worker.process import rank_processes

WAITS = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_where_the_system_starts_no_more_processes_those_that_were_started_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    class Full(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **options: Any) -> None:
            if len(begun) == 2:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            super().__init__(*given, **options)
            begun.append(self)

    monkeypatch.setattr(rank_processes.subprocess, "Popen", Full)

    with pytest.raises(ConfigurationRefused, match="2 of 3 processes of --nproc were started"):
        rank_processes.run(WAITS, [{}] * 3)

    assert [child.returncode for child in begun] == [-signal.SIGKILL] * 2


def test_the_exit_code_is_that_of_the_rank_that_failed_first() -> None:
    command = [sys.executable, "-I", "-S", "-c", "import os; os._exit(int(os.environ['CODE']))"]

    assert rank_processes.run(command, [{"CODE": "0"}, {"CODE": "0"}]) == 0
    assert rank_processes.run(command, [{"CODE": "0"}, {"CODE": "75"}]) == 75
