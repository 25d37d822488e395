"""Memory of a worker that its forked children, a DataLoader's processes, do not keep, or cannot write.

A fork shares every page until one side writes to it. Gradients are written each step, so with forked children
around, each of their pages would be copied once more and the old one kept as long as a child lives.

The pages are wiped in the child (MADV_WIPEONFORK), not taken from it (MADV_DONTFORK): what still refers to
them there may be read, and freed without unmapping what the child has put in their place.

Memory that shards map, too, would stay one with the child's. Right after the fork it gets zeros in place of
gradients; weights it maps privately: what it writes there is its own, and a page that it has not written to
goes on showing what shards write. So does memory of shards that this process maps, from the start.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from ps_wire.sockets import shared_memory
from ps_wire.spec.table import PAGE_BYTES

PAGES = Path("/proc/self/pagemap")
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


class OverlaidMemory(mmap.mmap):
    """Zeros of this process alone, over parts of which shards on this host lay their memory.

    There it reads what the shard has written last. What this process writes, it alone sees, and it sees
    nothing new on that page (4096 bytes) from then on: `written` finds out, `restore` undoes it.
    """

    def __new__(cls, nbytes: int) -> Self:
        """Reserves it; pages that are never touched take no memory."""
        return super().__new__(cls, -1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    @property
    def _address(self) -> int:
        return int(np.frombuffer(self, dtype=np.uint8).ctypes.data)

    def lay(self, descriptor: int, *, at: int, start: int, nbytes: int) -> None:
        """Lays a part of a shard's memory over a part of this.

        Args:
            descriptor: of the shard's.
            at: first byte of this that is covered; a multiple of the page size, as the others.
            start: first byte of the shard's.
            nbytes: how many.

        Raises:
            OSError: the system refuses, for instance for lack of mappings (vm.max_map_count).
        """
        self._map(at, nbytes, mmap.MAP_PRIVATE, descriptor, start)

    def own(self, *, at: int, nbytes: int) -> None:
        """Makes a part private again, with the values that it shows now; who reads meanwhile sees no others.

        Raises:
            OSError: the system has no memory or mapping left; a part may be private then.
        """
        for first in range(at, at + nbytes, _OWN_BYTES):
            self._own(self._address + first, min(_OWN_BYTES, at + nbytes - first))

    @staticmethod
    def _own(address: int, nbytes: int) -> None:
        """The copy is made elsewhere and takes the place of what was there in one call."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        made = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if made == _FAILED:
            raise _error("copying", nbytes)
        _libc.memcpy(made, address, nbytes)
        if _libc.mremap(made, nbytes, nbytes, _MREMAP_MAYMOVE | _MREMAP_FIXED, address) != address:
            error = _error("moving", nbytes)
            _libc.munmap(made, nbytes)
            raise error

    def drop(self) -> None:
        """Lets all memory go: it shows zeros."""
        self._map(0, len(self), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)

    def _map(self, at: int, nbytes: int, flags: int, descriptor: int, start: int) -> None:
        address, protection = self._address + at, mmap.PROT_READ | mmap.PROT_WRITE
        found = _libc.mmap(address, nbytes, protection, flags | _MAP_FIXED, descriptor, start)
        if found != address:
            raise _error("mapping", nbytes)

    def written(self, *, at: int, nbytes: int) -> bool:
        """Whether this process has written to a covered part since it was laid or restored.

        Takes some 10 ms per GB: the kernel looks at each page.
        """
        with PAGES.open("rb", buffering=0) as pages:
            pages.seek((self._address + at) // mmap.PAGESIZE * _PAGEMAP_BYTES)
            entries = np.frombuffer(pages.read(nbytes // mmap.PAGESIZE * _PAGEMAP_BYTES), dtype=np.uint64)
        return bool(_are_own(entries).any())

    def restore(self, *, at: int, nbytes: int) -> None:
        """A covered part shows the shard's memory again, whatever was written here."""
        self.madvise(mmap.MADV_DONTNEED, at, nbytes)


def _are_own(entries: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which pages hold what this process has written, by their entries in the page map.

    A page of the shard's that the kernel moves just then is swapped and of a file, for a moment.
    """
    kinds = entries >> np.uint64(61)  # 4 present, 2 swapped, 1 of a file: proc_pid_pagemap(5)
    return np.asarray((kinds == 4) | (kinds == 2))


def can_overlay() -> bool:
    """Whether this system lets a process map memory of shards, and see where it has written to it.

    Memory that only its maker may write is Linux 5.1's: the shard, on the same host, makes such.
    """
    if not shared_memory.AVAILABLE or mmap.PAGESIZE != PAGE_BYTES:
        return False
    try:
        with PAGES.open("rb", buffering=0):
            descriptor, _ = shared_memory.create_readable(PAGE_BYTES)
    except OSError:
        return False
    os.close(descriptor)
    return True


def _error(what: str, nbytes: int) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what} {nbytes} bytes of shared memory: {os.strerror(number)}")


_OWN_BYTES = 16 << 20  # copied at a time where memory becomes private, and a mapping of its own then
_PAGEMAP_BYTES = 8  # of an entry
_MAP_FIXED = 0x10  # linux/mman.h; Python's mmap has no name for it
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2  # linux/mman.h
_shared: weakref.WeakSet[SharedMemory] = weakref.WeakSet()

if shared_memory.AVAILABLE:
    _libc = ctypes.CDLL(None, use_errno=True)
    _place, _size, _flags = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    _libc.mmap.restype = _libc.mremap.restype = _place
    _libc.mmap.argtypes = [_place, _size, _flags, _flags, _flags, ctypes.c_long]
    _libc.mremap.argtypes = [_place, _size, _size, _flags, _place]
    _libc.munmap.argtypes = [_place, _size]
    _libc.memcpy.restype, _libc.memcpy.argtypes = _place, [_place, _place, _size]
    _FAILED = _place(-1).value  # MAP_FAILED


def _let_go() -> None:
    for memory in list(_shared):
        memory.let_go()


os.register_at_fork(after_in_child=_let_go)
