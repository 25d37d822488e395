"""When a step begins, as far as a snapshot is concerned."""

from __future__ import annotations

from ps_worker.capture import Capture


def test_a_step_that_begins_on_one_table_begins_on_no_other():
    """Two optimizers in turn on one batch: the cut is before a batch or after it, on both tables alike."""
    clocks = {0: 4, 1: 4}
    capture = Capture(lambda: dict(clocks), lambda: b"")
    capture.begin()  # a batch
    clocks[0] = 5
    capture.begin([1])
    clocks[1] = 5
    assert capture.prepare(1) == {0: 5, 1: 5}
