"""`--stress` finds a race that an idle machine hardly shows, and says with which seed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.seeded_run import run

RACE = '''
import sys
import threading
from types import ModuleType

TEXT = """
import threading

class Count:
    def __init__(self):
        self.lock = threading.Lock()
        self.value = 0

    def add(self):
        with self.lock:
            value = self.value
        with self.lock:
            self.value = value + 1
"""
module = ModuleType("ps_wire.count")
exec(TEXT, module.__dict__)
BETWEEN = 200

def test_adds():
    count = module.Count()

    def add():
        for _ in range(BETWEEN):
            count.add()

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.value == 4 * BETWEEN
'''


def test_a_count_that_is_read_and_written_under_two_locks_loses_some(tmp_path: Path):
    outcome = run(tmp_path, RACE, "--stress=7")
    assert "--stress=7" in outcome.stdout
    assert outcome.returncode == 1, outcome.stdout


def test_without_a_seed_one_is_drawn_and_printed(tmp_path: Path):
    outcome = run(tmp_path, RACE, "--stress", "--collect-only")
    assert re.search(r"--stress=\d+\n", outcome.stdout), outcome.stdout
