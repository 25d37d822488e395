"""Memory of a worker that its forked children, a DataLoader's processes, do not keep, or cannot write.

A fork shares every page until one side writes to it. Gradients are written each step, so with forked children
around, each of their pages would be copied once more and the old one kept as long as a child lives.

The pages are wiped in the child (MADV_WIPEONFORK), not taken from it (MADV_DONTFORK): what still refers to
them there may be read, and freed without unmapping what the child has put in their place.

Memory that shards map, too, would stay one with the child's. Right after the fork it gets zeros in place of
gradients, and in place of weights the same ones, as private pages: what it writes there is its own.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from typing import Self

import numpy as np
import torch

from ps_wire import shared_memory

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
        return torch.zeros(nbytes // dtype.itemsize, dtype=dtype, device="cpu")
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


class SharedMemory(mmap.mmap):
    """Zeros that shards on this host may map. What lies in it keeps it, longer than its worker lives.

    Attributes:
        descriptor: to be sent to them.
    """

    descriptor: int
    _wiped: bool

    def __new__(cls, nbytes: int, *, wiped: bool = False) -> Self:
        """Makes it.

        Args:
            nbytes: size.
            wiped: a forked child sees zeros, not what it held then.

        Raises:
            OSError: the system has no descriptor left.
        """
        descriptor = shared_memory.create(nbytes)
        try:
            made = super().__new__(cls, descriptor, nbytes)  # of all who map it: MAP_SHARED is the default
        except BaseException:
            os.close(descriptor)
            raise
        made.descriptor, made._wiped = descriptor, wiped
        weakref.finalize(made, os.close, descriptor)
        _shared.add(made)
        return made

    def let_go(self) -> None:
        """In a forked child: the memory is private, its descriptor leads nowhere."""
        flags = mmap.MAP_PRIVATE | _MAP_FIXED | (mmap.MAP_ANONYMOUS if self._wiped else 0)
        address = np.frombuffer(self, dtype=np.uint8).ctypes.data
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        descriptor = -1 if self._wiped else self.descriptor
        found = _libc.mmap(address, len(self), protection, flags, descriptor, 0)
        if found != address:
            os._exit(70)  # it would write into the worker's gradients
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, self.descriptor, inheritable=False)
        os.close(null)


_MAP_FIXED = 0x10  # linux/mman.h; Python's mmap has no name for it
_shared: weakref.WeakSet[SharedMemory] = weakref.WeakSet()

if shared_memory.AVAILABLE:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]


def _let_go() -> None:
    for memory in list(_shared):
        memory.let_go()


os.register_at_fork(after_in_child=_let_go)
