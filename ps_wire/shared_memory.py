"""Memory of one process that another one maps: made with memfd_create, passed over a Unix socket.

It has no name, so nothing is left behind by whoever crashes, and no size limit but the machine's memory. Its
size is sealed: a peer that could truncate it would kill whoever reads it with SIGBUS.

A region holds a table's buckets one behind the other, as `bytes_of` counts them: each begins at a page.

It must not know who writes when; `docs/protocol.md` says that for each region.
"""

from __future__ import annotations

import mmap
import os

from ps_wire.errors import FrameRefused
from ps_wire.plan import Partition, Plan

try:
    import fcntl

    _SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    AVAILABLE = hasattr(os, "memfd_create")
except (ImportError, AttributeError):  # not Linux
    AVAILABLE = False


class Layout:
    """Where the partitions of a table lie in a region.

    Attributes:
        nbytes: of the region.
    """

    def __init__(self, plan: Plan) -> None:
        """Lays the plan's buckets one behind the other."""
        self._starts: list[int] = []
        self.nbytes = 0
        for bucket in plan.buckets:
            self._starts.append(self.nbytes)
            self.nbytes += bucket.numel * bucket.item_bytes
        self._plan = plan

    def start_of(self, bucket: int) -> int:
        """First byte of a bucket."""
        return self._starts[bucket]

    def bytes_of(self, partition: Partition) -> slice:
        """Bytes of a partition."""
        item = self._plan.buckets[partition.bucket].item_bytes
        start = self._starts[partition.bucket] + partition.offset * item
        return slice(start, start + partition.numel * item)


def create(nbytes: int) -> int:
    """Zeros that other processes may map; returns their descriptor, which is the caller's to close.

    In `/proc/PID/smaps` it is named for its maker, `/memfd:ps-PID`.

    Raises:
        OSError: the system has no descriptor left.
    """
    descriptor = os.memfd_create(f"ps-{os.getpid()}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SIZE_SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def attach(descriptor: int, nbytes: int, *, writable: bool) -> memoryview:
    """Maps memory that a peer made. The descriptor may be closed then; the memory lives with the view.

    Raises:
        FrameRefused: it is no such memory, its size can change, or is another one than it must be.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
    except OSError as error:
        raise FrameRefused(f"what was sent to be mapped is no shared memory: {error.strerror}") from None
    if seals & _SIZE_SEALS != _SIZE_SEALS:
        raise FrameRefused("shared memory is only mapped if its size is sealed (F_SEAL_SHRINK, F_SEAL_GROW)")
    if size != nbytes:
        raise FrameRefused(
            f"shared memory of {nbytes} bytes was expected, got {size}", expected=nbytes, got=size
        )
    try:
        return memoryview(mmap.mmap(descriptor, nbytes, prot=protection))
    except OSError as error:
        raise FrameRefused(f"cannot map {nbytes} bytes of shared memory: {error.strerror}") from None
