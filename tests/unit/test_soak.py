"""A soak says of each run what came of it, and leaves nothing behind, however it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import soak
from tests.soak import HEAD, LOOP, Run
from tests.until import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest, pathlib

def test_good(): pass

@pytest.mark.skip(reason="so")
def test_skipped(): pass

@pytest.mark.parametrize("what", ["a b"])
def test_bad_at_first(what):
    before = pathlib.Path(__file__).with_name("before")
    if not before.exists():
        before.touch()
        raise ValueError("now and then - it fails")
"""
HANGS = "import signal\ndef test_hangs(): signal.pause()\n"

Soak = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(name="soak")
def _soak(tmp_path: Path) -> Iterator[Soak]:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    started: list[subprocess.Popen[str]] = []

    def soak(tests: str, *options: str) -> subprocess.Popen[str]:
        (tmp_path / "test_it.py").write_text(tests)
        place = ("-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path), str(tmp_path / "test_it.py"))
        started.append(
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.soak", "--folder", str(tmp_path / "soak"), *options, "--"),
                    *("-p", "no:cacheprovider", "-p", "no:randomly", *place),
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return started[-1]

    yield soak
    for process in started:
        process.kill()
        process.communicate()


def loops_of(pid: int) -> list[str]:
    """Busy loops among a process's children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [child for child in children if LOOP in Path(f"/proc/{child}/cmdline").read_text()]
    except OSError:
        return []


def test_each_run_is_a_line_with_what_failed(soak: Soak, tmp_path: Path):
    process = soak(TESTS, "--runs", "2", "--busy", "1")
    output, _ = process.communicate(timeout=2 * LIMIT_S)  # of its own process, and of two runs of pytest
    assert process.returncode == 1, output
    head, first, second = output.splitlines()
    assert head == HEAD
    assert re.match(r"  1  \S+ +\d{4}-\d\d-\d\d \d\d:\d\d      1  code 1   ", first), first
    assert first.split()[5:10] == ["code", "1", "1", "1", "1"]
    assert first.endswith("test_it.py::test_bad_at_first[a b]")
    assert second.split()[0] == "2"
    assert second.split()[5:9] == ["ok", "2", "0", "1"]
    assert (tmp_path / "soak" / "runs.txt").read_text() == output
    assert "now and then" in (tmp_path / "soak" / "run-1.log").read_text()


def test_the_next_soak_goes_on_with_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def one(number: int, loops: int, *_: object) -> Run:
        return Run.read(number, f"state, {loops}", "ok", 60.0, "")

    monkeypatch.setattr(soak, "one_run", one)
    for count in (2, 1):
        assert soak.soak(count, 4, (), tmp_path, 1.0)
    table = (tmp_path / "runs.txt").read_text().splitlines()
    assert [line.split()[0] for line in table] == ["run", "1", "2", "3"]


def test_one_that_is_broken_off_says_what_it_had_and_ends_its_loops(soak: Soak, tmp_path: Path):
    process = soak(HANGS, "--busy", "2")
    until(lambda: len(loops_of(process.pid)) == 2, "its loops are there")
    loops = [Path(f"/proc/{pid}") for pid in loops_of(process.pid)]
    until((tmp_path / "soak" / "run-1.log").exists, "the first run has begun")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, output
    assert output.splitlines()[0] == HEAD
    assert "runs so far are in" in output
    assert not [loop for loop in loops if loop.exists()]


def test_a_run_that_hangs_is_ended_at_its_limit(soak: Soak):
    process = soak(HANGS, "--runs", "1", "--busy", "0", "--limit-minutes", "0.05")
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, output
    assert output.splitlines()[1].split()[5] == "hung"


def test_what_pytest_prints_is_read():
    total = "1 failed, 7 passed, 2 skipped, 1 error in 61.20s (0:01:01)"
    logged = "ERROR    ps_server:log.py:1 of a captured log"
    text = f"..F\n{logged}\nFAILED tests/a.py::b - E: 3 passed in 2s\nERROR tests/c.py::d\n{total}\n"
    run = Run.read(3, "1a2b+  at noon  4", "code 1", 61.2, text)
    assert (run.passed, run.failed, run.skipped) == (7, 2, 2)
    assert run.names == ("tests/a.py::b", "tests/c.py::d")
    assert (
        str(run)
        == "  3  1a2b+  at noon  4  code 1        7       2        2      1.0  tests/a.py::b tests/c.py::d"
    )
