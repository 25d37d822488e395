"""What the C allocator keeps of freed blocks, and gives back when it is told to."""

from __future__ import annotations

import sys

import pytest

from tests.anew import run_anew

SCRIPT = """
from ps_wire.process.allocator import give_back_freed_blocks, keep_large_blocks

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

keep_large_blocks(one_arena=True)
blocks = [bytearray(4 << 20) for _ in range(50)]
last = bytearray(1 << 10)  # above them: what is free at the heap's end alone would go back
del blocks
kept = resident_mib()
give_back_freed_blocks()
print(kept, resident_mib())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_freed_blocks_are_kept_until_they_are_given_back():
    run = run_anew("-c", SCRIPT)
    assert run.returncode == 0, run.stderr
    kept, left = map(float, run.stdout.split())
    assert kept > 200
    assert left < kept - 190
