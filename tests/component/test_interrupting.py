"""What interrupts tests of Ctrl-C lands on lines that can be interrupted."""

from __future__ import annotations

import weakref
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
