"""What interrupts tests of Ctrl-C lands on lines that can be interrupted."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

from tests.component.interrupting import interrupted_at

OURS = """
def close(done):
    done.append("finalized")

def work(let_go, done):
    let_go()
    done.append("worked")
"""


def test_a_line_of_a_finalizer_is_passed_over():
    """Python drops what a finalizer raises, and runs them at any time."""
    ours: dict[str, Any] = {}
    exec(compile(OURS, "/ps_worker/ours.py", "exec"), ours)
    held, done = [{1}], []
    weakref.finalize(held[0], ours["close"], done)
    assert interrupted_at(1, lambda: ours["work"](held.clear, done))
    assert done == ["finalized"]


WAITS = """
def wait(lock, done):
    with lock:
        done.append("has it")
        try:
            done.append("waits")
        finally:
            done.append("goes")
"""


def test_a_lock_is_let_go_wherever_it_lands_inside(tmp_path: Path):
    """Not on `try`, where Python takes no signal, and where what a trace raises would leave the lock held."""
    file = tmp_path / "ps_worker" / "waits.py"
    file.parent.mkdir()
    file.write_text(WAITS)
    ours: dict[str, Any] = {}
    exec(compile(WAITS, str(file), "exec"), ours)
    ends = []
    for line in range(3):
        lock, done = threading.Lock(), []
        assert interrupted_at(line, lambda lock=lock, done=done: ours["wait"](lock, done))
        assert not lock.locked()
        ends.append(done)
    assert ends == [[], ["has it", "goes"], ["has it", "waits"]]
