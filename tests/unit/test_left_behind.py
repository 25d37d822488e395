"""What a test leaves behind for those after it is named."""

from __future__ import annotations

import gc
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.left_behind import unchanged
from tests.until import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
SOFT, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)
HANGING_UP = signal.getsignal(signal.SIGHUP)  # under nohup it is ignored


def ignore(_: int, __: object) -> None:
    """A handler."""


# What a test does, what of it is named, and how it is undone.
ACTS: list[tuple[Callable[[], object], str, Callable[[], object]]] = [
    (
        lambda: os.environ.update(PS_JOB="j"),
        "$PS_JOB: 'unset' before, 'j' now",
        lambda: os.environ.pop("PS_JOB"),
    ),
    (lambda: sys.path.insert(0, "/nowhere"), "the first of sys.path: ", lambda: sys.path.remove("/nowhere")),
    (lambda: sys.argv.append("more"), "sys.argv: ", lambda: sys.argv.remove("more")),
    (
        lambda: signal.signal(signal.SIGHUP, ignore),
        "the handler of SIGHUP: ",
        lambda: signal.signal(signal.SIGHUP, HANGING_UP),
    ),
    (gc.disable, "the garbage collector: True before, False now", gc.enable),
    (
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT - 1, HARD)),
        "the limit on descriptors: ",
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD)),
    ),
    (
        lambda: socket.setdefaulttimeout(1.0),
        "the default timeout of sockets: None before, 1.0 now",
        lambda: socket.setdefaulttimeout(None),
    ),
    (
        lambda: torch.set_default_dtype(torch.float64),
        "torch's default dtype: ",
        lambda: torch.set_default_dtype(torch.float32),
    ),
]


@pytest.mark.parametrize(("act", "named", "undo"), ACTS, ids=[it[1].partition(":")[0] for it in ACTS])
def test_what_is_left_behind_is_named(
    act: Callable[[], object], named: str, undo: Callable[[], object]
) -> None:
    try:
        with pytest.raises(AssertionError, match=re.escape(f"left behind: {named}")), unchanged():
            act()
    finally:
        undo()


def test_a_folder_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "here"
    folder.mkdir()

    def act() -> None:
        monkeypatch.chdir(folder)
        folder.rmdir()

    with pytest.raises(AssertionError, match=r"the working directory: .* 'removed' now"), unchanged():
        act()


def test_a_variable_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/here")
    with pytest.raises(AssertionError, match=r"\$HOME: '/here' before, 'unset' now"), unchanged():
        monkeypatch.delenv("HOME")


def test_what_a_library_sets_when_it_is_first_imported_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with unchanged():
        monkeypatch.setenv("KMP_OF_A_LIBRARY", "1")


def test_it_is_looked_at_behind_each_test(tmp_path: Path) -> None:
    """The test that leaves it fails, and no other."""
    (tmp_path / "test_two.py").write_text(
        "import sys\n\ndef test_one(): sys.argv.append('more')\n\ndef test_two(): assert 'more' in sys.argv\n"
    )
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.left_behind", "-p", "no:cacheprovider"),
            *("-p", "no:randomly", f"--rootdir={tmp_path}", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert "2 passed, 1 error" in run.stdout, run.stdout
    assert "left behind: sys.argv: " in run.stdout
