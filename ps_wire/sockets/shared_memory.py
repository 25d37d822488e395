"""Memory of one process that another one maps: made with memfd_create, passed over a Unix socket.

It has no name, so nothing is left behind by whoever crashes, and no size limit but the machine's memory. Its
size is sealed: a peer that could truncate it would kill whoever reads it with SIGBUS. Memory that only its
maker may write is sealed against later writers, too.

A worker's region holds a table's buckets one behind the other, a shard's region its slices of them: each
begins at a page.

It must not know who writes when; `docs/protocol.md` says that for each region.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection

from ps_wire.errors import FrameRefused
from ps_wire.spec.plan import Partition, Plan
from ps_wire.spec.table import PAGE_BYTES

try:
    import fcntl

    _SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    _NO_LATER_WRITER = 0x10  # F_SEAL_FUTURE_WRITE of linux/fcntl.h (5.1); Python 3.11 has no name for it
    AVAILABLE = hasattr(os, "memfd_create")
except (ImportError, AttributeError):  # not Linux
    AVAILABLE = False


class Layout:
    """The places of a table's partitions in a worker's region.

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


class SliceLayout:
    """The places of a shard's slices of a table's buckets in its region, in the buckets' order.

    Attributes:
        nbytes: of the region.
        spans: (offset in a worker's region, offset in the shard's, bytes) of each slice that is not empty.
    """

    def __init__(self, plan: Plan, shard: int, held: Collection[int] | None = None) -> None:
        """Lays the shard's slices one behind the other.

        Args:
            plan: of the table.
            shard: number of it.
            held: buckets that `spans` are of; None: all.
        """
        self._plan = plan
        self._starts: list[int] = []
        self.nbytes = 0
        self.spans: list[tuple[int, int, int]] = []
        whole = Layout(plan)
        for bucket in plan.buckets:
            first, end = bucket.slice_bounds(shard)
            count = (end - first) * bucket.item_bytes
            self._starts.append(self.nbytes - first * bucket.item_bytes)
            if count and (held is None or bucket.index in held):
                at = whole.start_of(bucket.index) + first * bucket.item_bytes
                self.spans.append((at, self.nbytes, count))
            self.nbytes += count
        self.nbytes = max(self.nbytes, PAGE_BYTES)  # a shard may hold nothing of a small table

    def start_of(self, partition: Partition) -> int:
        """First byte of one of the shard's partitions."""
        item = self._plan.buckets[partition.bucket].item_bytes
        return self._starts[partition.bucket] + partition.offset * item


def create(nbytes: int) -> int:
    """Zeros that other processes may map; returns their descriptor, which is the caller's to close.

    In `/proc/PID/smaps` it is named for its maker, `/memfd:ps-PID`.

    Raises:
        OSError: the system has no descriptor left.
    """
    descriptor = _create(nbytes)
    _seal(descriptor, _SIZE_SEALS)
    return descriptor


def create_readable(nbytes: int) -> tuple[int, mmap.mmap]:
    """Zeros that other processes may map and never write to; their descriptor is the caller's to close.

    Returns:
        The descriptor, and the memory, which alone can be written.

    Raises:
        OSError: the system has no descriptor or memory left, or knows no such seal (Linux before 5.1).
    """
    descriptor = _create(nbytes)
    try:
        mapped = mmap.mmap(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise
    _seal(descriptor, _SIZE_SEALS | _NO_LATER_WRITER)
    return descriptor, mapped


def _create(nbytes: int) -> int:
    descriptor = os.memfd_create(f"ps-{os.getpid()}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _seal(descriptor: int, seals: int) -> None:
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise


def attach(descriptor: int, nbytes: int, *, writable: bool) -> memoryview:
    """Maps memory that a peer made. The descriptor may be closed then; the memory lives with the view.

    Raises:
        FrameRefused: it is no such memory, its size can change, or is another one than it must be.
    """
    check(descriptor, nbytes)
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        return memoryview(mmap.mmap(descriptor, nbytes, prot=protection))
    except OSError as error:
        raise FrameRefused(f"cannot map {nbytes} bytes of shared memory: {error.strerror}") from None


def check(descriptor: int, nbytes: int) -> None:
    """Refuses what a peer sent to be mapped unless it is memory of this size for good.

    Raises:
        FrameRefused: it is no such memory, its size can change, or is another one than it must be.
    """
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
