"""Memory that a forked child sees as zeros: a DataLoader's processes do not keep it.

A fork shares every page until one side writes to it. Gradients are written each step, so with forked children
around, each of their pages would be copied once more and the old one kept as long as a child lives.

The pages are wiped in the child (MADV_WIPEONFORK), not taken from it (MADV_DONTFORK): what still refers to
them there may be read, and freed without unmapping what the child has put in their place.
"""

from __future__ import annotations

import mmap
import sys

import torch

_MADV_WIPEONFORK = 18  # linux/mman.h; Python's mmap has no name for it


def private_memory(nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros of this process alone, at a page boundary.

    Where the system cannot keep memory from children (not Linux, or older than 4.14), plain `torch.zeros`.

    Args:
        nbytes: size in bytes; a multiple of the element's size.
        dtype: of the elements.

    Returns:
        A contiguous CPU tensor of shape (nbytes / element size,), which owns the memory.
    """
    mapped = _mapped(nbytes)
    if mapped is None:
        return torch.zeros(nbytes // dtype.itemsize, dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype)


def _mapped(nbytes: int) -> mmap.mmap | None:
    if nbytes == 0 or not sys.platform.startswith("linux"):
        return None
    mapped = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        mapped.madvise(_MADV_WIPEONFORK)
    except OSError:
        mapped.close()
        return None
    return mapped
