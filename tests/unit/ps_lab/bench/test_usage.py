"""What the system tells of processes."""

from __future__ import annotations

import mmap
import os
import sys

import pytest

from ps_lab.bench import usage
from ps_wire.sockets import shared_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
NBYTES = 1 << 20


def map_touched(descriptor: int) -> mmap.mmap:
    mapped = mmap.mmap(descriptor, NBYTES)
    mapped[:] = b"\1" * NBYTES
    os.close(descriptor)
    return mapped


def test_memory_is_borrowed_where_another_process_has_made_it() -> None:
    with map_touched(shared_memory.create(NBYTES)):
        assert usage.borrowed_bytes(os.getpid()) == 0
        lent = os.memfd_create(f"ps-{os.getppid()}")
        os.ftruncate(lent, NBYTES)
        with map_touched(lent):
            assert usage.borrowed_bytes(os.getpid()) == NBYTES
    assert usage.borrowed_bytes(os.getpid()) == 0


def test_a_process_that_has_gone_is_not_known() -> None:
    gone = 1 << 30  # above what Linux numbers processes with
    assert usage.borrowed_bytes(gone) is None
    assert usage.open_files(gone) is None
    assert usage.pss_bytes([os.getpid(), gone]) is None
    assert usage.cpu_s([gone]) is None


def test_pages_of_one_process_count_as_its_resident_ones() -> None:
    pss, rss = usage.pss_bytes([os.getpid()]), usage.rss_bytes(os.getpid())
    assert pss is not None
    assert rss is not None
    assert 0 < pss <= rss + (1 << 20)  # read at two moments
