"""What a process says that does not end in time: `tests/anew.py`."""

from __future__ import annotations

import re

import pytest

from tests.anew import run_anew

STANDS = "import time\ndef stands():\n    print('up', flush=True)\n    time.sleep(1000)\nstands()"


def test_how_a_process_ended_is_told() -> None:
    done = run_anew("-I", "-S", "-c", "import sys; print('out'); sys.exit('why')")
    assert (done.returncode, done.stdout, done.stderr) == (1, "out\n", "why\n")


def test_one_that_does_not_end_says_where_it_stands() -> None:
    for limit_s in (1.0, 10.0, 100.0):  # it may not be up so soon
        with pytest.raises(AssertionError) as failed:
            run_anew("-S", "-c", STANDS, limit_s=limit_s)
        if "up" in (said := str(failed.value)).splitlines():
            break
    assert re.search(r" did not end within \d+ s:\nup\n(.|\n)* in stands\n", said), said
