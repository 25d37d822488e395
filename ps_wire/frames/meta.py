"""The meta of a frame, by kind: a bitmap of pieces, a list of partitions, clocks of members."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from ps_wire.errors import FrameMalformed
from ps_wire.frames.frame import Frame

_CLOCK = struct.Struct("<IQ")


def bitmap(present: Sequence[bool]) -> bytes:
    """Of a PUSH. Bit i is piece i, lowest bit first."""
    packed = bytearray(-(-len(present) // 8))
    for index, flag in enumerate(present):
        packed[index >> 3] |= flag << (index & 7)
    return bytes(packed)


def read_bitmap(meta: bytes | memoryview, num_pieces: int) -> tuple[bool, ...]:
    """Which pieces had a gradient; an empty meta means all.

    Raises:
        FrameMalformed: it is of another number of pieces.
    """
    if not meta:
        return (True,) * num_pieces
    needed = -(-num_pieces // 8)
    if len(meta) != needed:
        raise FrameMalformed(f"a bitmap of {num_pieces} pieces has {needed} bytes, got {len(meta)}")
    return tuple(bool(meta[index >> 3] >> (index & 7) & 1) for index in range(num_pieces))


def listed(indices: Sequence[int]) -> bytes:
    """Of a PULL or ABSTAIN: numbers of partitions."""
    return struct.pack(f"<{len(indices)}I", *indices)


def read_listed(frame: Frame, count: int | None = None) -> tuple[int, ...]:
    """Numbers of partitions in a frame's meta, at least one, each once; `count` of them, None: all of it.

    Raises:
        FrameMalformed: it is cut short, or empty, or one is there twice.
    """
    listed = frame.meta if count is None else frame.meta[: 4 * count]
    if not listed or len(listed) % 4 or (count is not None and len(listed) < 4 * count):
        raise FrameMalformed(f"a {frame.kind.name} frame lists partitions, 4 bytes each")
    indices = struct.unpack(f"<{len(listed) // 4}I", listed)
    if len(set(indices)) < len(indices):
        raise FrameMalformed(f"a {frame.kind.name} frame lists each partition once")
    return indices


def part(pull: Frame, indices: Sequence[int]) -> Frame:
    """A PULL that asks for some partitions of its list, in their order."""
    return pull.but(partition=indices[0], meta=listed(indices))


def clocks(members: Iterable[tuple[int, int]]) -> bytes:
    """Of a PULLED: (worker, clock) of the members."""
    return b"".join(_CLOCK.pack(worker, clock) for worker, clock in members)


def read_clocks(meta: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """(worker, clock) of the members. Raises struct.error where it is cut short."""
    return _CLOCK.iter_unpack(meta)
