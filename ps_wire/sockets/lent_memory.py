"""Memory that payloads leave by reference: over a Unix socket the kernel passes on its pages, not copies.

So nobody may write there until the peer has said that it has the bytes; that they have left is not enough.
The ownership of such memory (docs/protocol.md) promises that anyway, for frames may have to be sent again.

Python unmaps memory before it calls a finalizer, and other threads run in between: other memory may be mapped
at the same address by then. So an entry counts for as long as its memory is referred to, and has a number of
its own.

It must not know sockets or frames.
"""

from __future__ import annotations

import itertools
import mmap
import weakref

import numpy as np

# start, end, descriptor, memory
_lent: dict[int, tuple[int, int, int, weakref.ref[mmap.mmap]]] = {}
_numbers = itertools.count()


def lend(memory: mmap.mmap, descriptor: int) -> None:
    """Payloads that lie in this memory leave by reference, from now on.

    Args:
        memory: all of what `descriptor` refers to.
        descriptor: open for as long as `memory` is there.
    """
    start, number = np.frombuffer(memory, dtype=np.uint8).ctypes.data, next(_numbers)
    _lent[number] = start, start + len(memory), descriptor, weakref.ref(memory)
    weakref.finalize(memory, _lent.pop, number).atexit = False


def place_of(payload: memoryview) -> tuple[int, int] | None:
    """Where a payload can be read in a file: (descriptor, offset); None: its memory is not lent.

    The descriptor is open for as long as the payload is there.
    """
    if not _lent:
        return None
    address = np.frombuffer(payload, dtype=np.uint8).ctypes.data
    for start, end, descriptor, memory in list(_lent.values()):  # a few: tables have one or two each
        if start <= address and address + len(payload) <= end and memory() is not None:
            return descriptor, address - start
    return None
