"""`--late` finds what holds only where one thread is faster than another, and says with which seed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.seeded_run import run

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


def test_a_thread_that_starts_another_one_is_not_always_the_faster_one(tmp_path: Path):
    outcome = run(tmp_path, RACE, "--late=7")
    assert "--late=7" in outcome.stdout
    assert outcome.returncode == 1, outcome.stdout
    assert "assert not [True]" in outcome.stdout


def test_without_a_seed_one_is_drawn_and_printed(tmp_path: Path):
    outcome = run(tmp_path, RACE, "--late", "--collect-only")
    assert re.search(r"--late=\d+\n", outcome.stdout), outcome.stdout
