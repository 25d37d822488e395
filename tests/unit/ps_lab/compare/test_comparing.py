"""What a comparison says while it runs."""

from __future__ import annotations

import pytest

from ps_lab.compare.comparing import time_left_s


def test_the_time_left_falls_while_a_run_goes_on_and_never_grows():
    """Three runs of ten seconds each: whoever takes longer than the mean ends at any moment."""
    left_s = [time_left_s(10.0, 3, going_s) for going_s in (0.0, 4.0, 10.0, 25.0)]
    assert left_s == pytest.approx([30.0, 26.0, 20.0, 20.0])
