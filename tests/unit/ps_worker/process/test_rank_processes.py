"""Ranks as child processes: all are started, or none is left."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ps_wire.errors import ConfigurationRefused
from ps_worker.process import rank_processes

WAITS = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
EXITS = [
    *WAITS[:-1],
    "import os; code = int(os.environ['CODE']); code < 0 and os.kill(os.getpid(), -code); os._exit(code)",
]

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    gc.unfreeze()
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_where_the_system_starts_no_more_processes_those_that_were_started_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []
    real = os.fork

    def full() -> int:
        if len(begun) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        begun.append(real())
        return begun[-1]

    monkeypatch.setattr(os, "fork", full)

    with pytest.raises(ConfigurationRefused, match="2 of 3 processes of --nproc were started"):
        rank_processes.run([{}] * 3, WAITS)

    for pid in begun:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)  # it has ended, and was waited for


@pytest.mark.parametrize("command", [EXITS, ()], ids=["fresh", "forked"])
def test_the_exit_code_is_that_of_the_rank_that_failed_first(command: list[str]) -> None:
    for codes, first in ((("0", "0"), 0), (("0", "75"), 75), (("-9", "0"), 137)):
        code = rank_processes.run([{"CODE": it} for it in codes], command)
        if code is None:  # this is a rank
            os._exit(exits())
        assert code == first


def exits() -> int:
    code = int(os.environ["CODE"])
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def test_what_a_rank_left_behind_is_waited_for_and_its_code_is_none_of_a_rank() -> None:
    """As process 1 of a container gets it: a child that is no rank."""
    left = os.fork()
    if not left:
        os._exit(3)
    os.waitid(os.P_PID, left, os.WEXITED | os.WNOWAIT)

    assert rank_processes.run([{"CODE": "0"}], EXITS) == 0
    with pytest.raises(ChildProcessError):
        os.waitpid(left, os.WNOHANG)


def test_what_all_ranks_import_is_imported_once_before_they_are_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages are those of all of them."""
    done = tmp_path / "done"
    text = f"import os\nwith open({str(done)!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
    (tmp_path / "imported_by_all_ranks.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    if rank_processes.run([{}] * 2, modules=["imported_by_all_ranks"]) is None:
        os._exit("imported_by_all_ranks" not in sys.modules)

    assert done.read_text() == f"{os.getpid()}\n"
    del sys.modules["imported_by_all_ranks"]


def test_a_rank_that_goes_on_from_the_fork_has_the_signals_of_before_and_numbers_of_its_own() -> None:
    drawn, written = os.pipe()
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    if rank_processes.run([{}] * 2) is None:
        kept = before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        os.write(written, f"{kept and not blocked} {np.random.random()}\n".encode())
        os._exit(0)

    os.close(written)
    with os.fdopen(drawn) as lines:
        said = [line.split() for line in lines]
    assert [kept for kept, _ in said] == ["True", "True"]
    assert said[0][1] != said[1][1]
