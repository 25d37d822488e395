"""`--late` finds what holds only where one thread is faster than another, and says with which seed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.until import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]

RACE = """
import threading
import time

def test_who_starts_another_is_the_faster_one():
    for _ in range(100):
        over = []

        def pauses():
            time.sleep(0.02)
            over.append(True)

        thread = threading.Thread(target=pauses)
        thread.start()
        assert not over
        thread.join()
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_race.py").write_text(RACE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *options, f"--rootdir={folder}", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_thread_that_starts_another_one_is_not_always_the_faster_one(tmp_path: Path):
    outcome = run(tmp_path, "--late=7")
    assert "--late=7" in outcome.stdout
    assert outcome.returncode == 1, outcome.stdout
    assert "assert not [True]" in outcome.stdout


def test_without_a_seed_one_is_drawn_and_printed(tmp_path: Path):
    outcome = run(tmp_path, "--late", "--collect-only")
    assert re.search(r"--late=\d+\n", outcome.stdout), outcome.stdout
