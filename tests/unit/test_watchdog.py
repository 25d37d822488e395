"""No run of the tests hangs or ends without a word: pytest in a process of its own, on bad tests."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
PRELUDE = """
import ctypes, os, signal, threading
from tests import watchdog

watchdog.MARGIN_S = 1.0

def never_comes_back():
    '''Waits in C for what this very thread has, and keeps the GIL meanwhile.'''
    mutex = ctypes.create_string_buffer(256)
    lock = ctypes.PyDLL(None).pthread_mutex_lock
    lock(mutex), lock(mutex)

def test_before(): pass
def test_after(): pass
"""
STUCK = """
import pytest
@pytest.mark.timeout(15)
def test_stuck(): never_comes_back()
"""


def run(folder: Path, body: str, *options: str, conftest: str = "") -> subprocess.CompletedProcess[str]:
    """A run of pytest on these tests."""
    (folder / "test_it.py").write_text(PRELUDE + body)
    (folder / "conftest.py").write_text(PRELUDE.partition("def test")[0] + conftest)
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.watchdog", "-p", "no:cacheprovider"),
            *("-p", "xdist", "-p", "pytest_timeout"),
            *("--rootdir", str(folder), "-c", str(folder / "pytest.ini"), "--confcutdir", str(folder)),
            *("--timeout", "100", *options, str(folder)),
        ],
        cwd=ROOT,
        # Of all that is installed these plugins alone: with others each process takes twice as long to start.
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
        check=False,
    )


@pytest.fixture(autouse=True)
def _ini(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")


def test_a_test_that_keeps_the_gil_is_ended_with_its_name_and_its_stacks(tmp_path: Path):
    ended = run(tmp_path, STUCK)
    assert ended.returncode == -signal.SIGABRT
    said = r"is stuck for more than 16 s at \S*test_it.py::test_stuck; it is ended by SIGABRT"
    assert re.search(said, ended.stderr), ended.stderr
    assert "in never_comes_back" in ended.stderr
    assert "in test_stuck" in ended.stderr


def test_under_xdist_the_others_go_on(tmp_path: Path):
    ended = run(tmp_path, f"{STUCK}def test_last(): pass\n", "-n", "2")
    assert ended.returncode == 1, ended.stderr
    assert "1 failed, 3 passed" in ended.stdout
    assert "in test_stuck" in ended.stderr
    assert re.search(r"crashed while running 'test_it.py::test_stuck'\n.*was ended by SIGABRT", ended.stdout)


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "was ended by SIGTERM"),
        ("os._exit(3)", "exited with code 3"),
    ],
)
def test_a_process_that_vanishes_says_how_and_in_which_test(tmp_path: Path, body: str, how: str):
    ended = run(tmp_path, f"def test_gone(): {body}\n", "-n", "1")
    assert ended.returncode == 1, ended.stderr
    assert re.search(rf"crashed while running 'test_it.py::test_gone'\n.*{how}", ended.stdout), ended.stdout
    assert "ended without a word, at test_it.py::test_gone" in ended.stderr
    assert ("in test_gone" in ended.stderr) == ("SIGTERM" in how)  # what its threads were doing


def test_a_process_that_vanishes_between_tests_says_how(tmp_path: Path):
    # Before it has said what it collected: who hands out tests may not find out by sending some into nothing.
    conftest = (
        "def pytest_collection_modifyitems(config):\n    if hasattr(config, 'workerinput'): os._exit(4)\n"
    )
    ended = run(tmp_path, "", "-n", "1", "--max-worker-restart", "0", conftest=conftest)
    assert ended.returncode != 0
    assert re.search(r"\[gw0\] its process \d+ exited with code 4", ended.stderr), ended.stderr


def test_a_process_that_cannot_end_is_ended_with_its_stacks(tmp_path: Path):
    body = "def test_leaves(): threading.Thread(target=threading.Event().wait).start()\n"
    # Its time begins when the watcher reads that it has: once the main thread waits for the other one.
    conftest = """
def pytest_unconfigure(config):
    (it,) = [it for it in config.pluginmanager.get_plugins() if isinstance(it, watchdog.Watchdog)]
    watchdog.QUIET_S = 1.0
    it._watcher.send_signal(signal.SIGSTOP)

    def go_on():
        threading.main_thread().join()
        it._watcher.send_signal(signal.SIGCONT)

    threading.Thread(target=go_on, daemon=True).start()
"""
    ended = run(tmp_path, body, conftest=conftest)
    assert "3 passed" in ended.stdout
    assert ended.returncode == -signal.SIGABRT
    assert "is stuck for more than 1 s at the end of its process" in ended.stderr
    assert "in _shutdown" in ended.stderr


def test_the_process_that_hands_out_the_tests_is_watched_too(tmp_path: Path):
    conftest = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_logstart():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        watchdog.QUIET_S = 3.0
        yield
        never_comes_back()
    else:
        yield
"""
    ended = run(tmp_path, "", "-n", "1", conftest=conftest)
    assert ended.returncode == -signal.SIGABRT
    assert "is stuck for more than 3 s at waiting for tests" in ended.stderr
    assert "in never_comes_back" in ended.stderr


def test_a_limit_of_its_own_counts(tmp_path: Path):
    body = "import pytest\n@pytest.mark.timeout(100)\ndef test_slow(): ctypes.PyDLL(None).usleep(4_500_000)\n"
    ended = run(tmp_path, body, "--timeout", "3", "-k", "test_slow")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_what_is_in_order_says_nothing(tmp_path: Path):
    ended = run(tmp_path, "", "-n", "1")
    assert ended.returncode == 0
    assert "process" not in ended.stderr
