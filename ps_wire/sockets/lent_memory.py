"""Memory that payloads leave by reference: over a Unix socket the kernel passes on its pages, not copies.

So nobody may write there until the peer has said that it has the bytes; that they have left is not enough.
The ownership of such memory (docs/protocol.md) promises that anyway, for frames may have to be sent again.

It must not know sockets or frames.
"""

from __future__ import annotations

import weakref

import numpy as np

from ps_wire.sockets.shared_memory import Mapped

_lent: dict[int, tuple[int, int]] = {}  # address -> the first behind the memory, descriptor


def lend(memory: Mapped, descriptor: int) -> None:
    """Payloads that lie in this memory leave by reference, from now on.

    Args:
        memory: all of what `descriptor` refers to.
        descriptor: open for as long as `memory` is there.

    What is lent again is lent until it goes.
    """
    start = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    _lent[start] = start + len(memory), descriptor
    weakref.finalize(memory, _lent.pop, start, None).atexit = False


def place_of(payload: memoryview) -> tuple[int, int] | None:
    """Where a payload can be read in a file: (descriptor, offset); None: its memory is not lent.

    The descriptor is open for as long as the payload is there.
    """
    if not _lent:
        return None
    address = np.frombuffer(payload, dtype=np.uint8).ctypes.data
    for start, (end, descriptor) in list(_lent.items()):  # a few: tables have one or two each
        if start <= address and address + len(payload) <= end:
            return descriptor, address - start
    return None
