"""Memory of this process that the system has given pages to: what is only reserved takes none."""

from __future__ import annotations

import mmap

import numpy as np
import torch

from ps_worker.memory.os_memory import PAGES

ENTRY_BYTES = 8  # of the page map: proc_pid_pagemap(5)
THERE = np.uint64(3 << 62)  # present, or swapped


def resident_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the pages behind a contiguous tensor that are this process's, or mapped by it, now."""
    return resident(tensor.data_ptr(), tensor.nbytes)


def resident(address: int, nbytes: int) -> int:
    """The same of a range of addresses, without pages that it shares at its ends."""
    first, end = -(-address // mmap.PAGESIZE), (address + nbytes) // mmap.PAGESIZE
    with PAGES.open("rb", buffering=0) as pages:
        pages.seek(first * ENTRY_BYTES)
        entries = np.frombuffer(pages.read((end - first) * ENTRY_BYTES), dtype=np.uint64)
    return int(np.count_nonzero(entries & THERE)) * mmap.PAGESIZE
