"""Frames of the data plane: a fixed header of 64 bytes, meta, payload. `docs/protocol.md` has each byte.

Owns the binary layout and its checks. It must not know what a frame means to a shard or a worker.
Invariant: `decode(encode(frame)) == frame`, and nothing that fails a check gets past `decode`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

from ps_wire.errors import FrameMalformed, FrameTooLarge, ProtocolMismatch
from ps_wire.frames.shared_place import SharedPlace

MAGIC = 0x31765350  # b"PSv1" in little endian
PROTOCOL = 5
HEADER_BYTES = 64
MAX_PAYLOAD_BYTES = 8 << 20
MAX_META_BYTES = (4 << 20) - HEADER_BYTES
READ = 1  # flag of a PULL: the job has ended, so it is answered at once, with weights that change no more
CUT = 2  # flag of a PULL: acknowledged at once, answered at the cut of that number (its step); for a reader
STRICT = 2  # flag of a PUSH: its hyper-parameters are those of its step, or its worker gets an error
PULLS = 4  # flag of a PUSH: its worker has all weights of older versions; newer ones say that it was read
RANKS = 8  # flag of a PUSH, SHARED: its gradient is the mean of what the ranks of its group have there
TOLD = 1  # flag of an ACK: `hyper` is the clock gap that the push made. Not of a duplicate's
APPLIED = 2  # flag of an ACK: `version` is that at which the push was applied, or in bsp will be
DROPPED = 4  # flag of an ACK: the push came too late
ABSTAINED = 8  # flag of an ACK: nothing of the push is applied, since it has nothing, or nothing finite
LOADED = 16  # flag of an ACK: of a LOAD, not of a push. Both may be of step 0
TIMED = 2  # flag of a PULLED: `hyper` is how long its PULL waited at the gate, in microseconds
MAX_HYPER = (1 << 32) - 1  # the field's; what is larger, of a gap or a wait, is told as that
LENT = 64  # flag of an ACK: the push is accounted for, and its memory still read, until FREE or weights
LISTED = 32  # flag of a PUSH, ACK or PULLED: it stands for one on each partition that its meta lists
SHARED = 128  # flag: the payload lies in shared memory. Of a HELLO: the connection shares memory
FIRST_READER = 1 << 31  # readers' numbers begin here, workers' end below
MAX_GENERATION = (1 << 32) - 1  # the field's; it is also the upper half of an incarnation
META_ALIGNMENT = 16  # the payload behind it stays aligned for every dtype

_HEADER = struct.Struct("<IBBBBIHHQQIIQIfII")
assert _HEADER.size == HEADER_BYTES


class Kind(IntEnum):
    """The kind of a frame. The numbers are on the wire: they are never reused."""

    HELLO = 1
    HYPER = 2
    LOAD = 3
    PUSH = 4
    ABSTAIN = 5
    PULL = 6
    PULLED = 7
    ACK = 8
    REFUSE = 9
    SHARE = 10
    FREE = 11


_KINDS = {int(kind): kind for kind in Kind}
_NONE = b""


class Frame(NamedTuple):
    """One frame. Fields that a kind does not use keep their defaults; `docs/protocol.md` lists which it uses.

    A named tuple, given by keywords: a round makes hundreds, and a dataclass of as many fields takes four
    times as long to make (1.5 us).

    Attributes:
        kind: what it is.
        codec: how the payload is encoded (`ps_wire.spec.codec`); 0 is the partition's dtype as it is.
        flags: of a PULL: `READ` or `CUT`; of a PUSH: `STRICT`, `PULLS`, `RANKS`; see also `LISTED`.
        partition: number in the table's plan.
        table: number of the table in its job.
        rank: which rank of a worker group sent it.
        step: the sender's clock on the partition.
        version: PUSH: the version that the gradient was computed on. PULLED: the version sent. ACK: see
            `APPLIED`. PULL: 1 asks for an answer that is `TIMED`.
        worker: number of the worker in its job.
        generation: of the shard.
        incarnation: of that worker; grows at each join.
        hyper: number of the hyper-parameters that a PUSH takes, or a HYPER sets. ACK: see `TOLD`. PULLED: see
            `TIMED`, or how many its list has. SHARE: how many of the descriptors, the last ones, are of ranks
            of the sender's group.
        weight: of the push in a BSP mean.
        meta: by kind: a bitmap, a list, a message.
        payload: elements, raw.
        terms: in place of a payload: what each rank of a group has, float32, in rank order; the payload is
            their mean. On a shard also the one gradient that lies in shared memory. In no byte of the frame:
            see `RANKS`, and `terms.whole`.
        descriptors: open files that go beside a SHARE; a Unix socket carries them, in no byte of the frame.
    """

    kind: Kind
    codec: int = 0
    flags: int = 0
    partition: int = 0
    table: int = 0
    rank: int = 0
    step: int = 0
    version: int = 0
    worker: int = 0
    generation: int = 0
    incarnation: int = 0
    hyper: int = 0
    weight: float = 1.0
    meta: bytes | memoryview = _NONE
    payload: bytes | memoryview = _NONE
    terms: tuple[memoryview | SharedPlace, ...] = ()
    descriptors: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the payload, also where its terms stand for it."""
        return len(self.terms[0]) if self.terms else len(self.payload)

    def but(self, **fields: Any) -> Frame:
        """The same with other values in some fields."""
        return self._replace(**fields)


def header(frame: Frame, payload_bytes: int) -> bytes:
    """The 64 bytes that go before a frame's meta and a payload of that size."""
    return _HEADER.pack(
        MAGIC,
        PROTOCOL,
        frame.kind,
        frame.codec,
        frame.flags,
        frame.partition,
        frame.table,
        frame.rank,
        frame.step,
        frame.version,
        frame.worker,
        frame.generation,
        frame.incarnation,
        frame.hyper,
        frame.weight,
        payload_bytes,
        len(frame.meta),
    )


def prefix(frame: Frame) -> bytes:
    """The bytes before the frame's payload: header, meta padded to 16 bytes."""
    assert not frame.terms, "what cannot be read where it lies is made whole before it leaves"
    head = header(frame, memoryview(frame.payload).nbytes)
    if not frame.meta:
        return head
    return b"".join((head, frame.meta, bytes(-len(frame.meta) % META_ALIGNMENT)))


def encode(frame: Frame) -> bytes:
    """The frame as one message: header, meta padded to 16 bytes, payload. Copies the payload once."""
    return b"".join((prefix(frame), frame.payload))


class Header:
    """The header of a frame that is arriving: checked, with the lengths of what follows.

    Attributes:
        kind: of the frame.
        meta_bytes: length of the meta.
        padded_meta_bytes: with its padding.
        payload_bytes: length of the payload.
    """

    __slots__ = ("_fields", "kind", "meta_bytes", "padded_meta_bytes", "payload_bytes")

    def __init__(self, data: bytes | bytearray, start: int = 0) -> None:
        """Reads the 64 bytes of `data` from `start` on. Raises what `decode` raises of them."""
        self._fields = _HEADER.unpack_from(data, start)
        self.kind = _check(self._fields)
        self.payload_bytes: int = self._fields[15]
        self.meta_bytes: int = self._fields[16]
        self.padded_meta_bytes = self.meta_bytes + -self.meta_bytes % META_ALIGNMENT

    def frame(
        self,
        meta: bytes | memoryview = _NONE,
        payload: bytes | memoryview = _NONE,
        descriptors: tuple[int, ...] = (),
    ) -> Frame:
        """The frame with what came behind the header."""
        fields = self._fields
        return Frame(
            kind=self.kind,
            codec=fields[3],
            flags=fields[4],
            partition=fields[5],
            table=fields[6],
            rank=fields[7],
            step=fields[8],
            version=fields[9],
            worker=fields[10],
            generation=fields[11],
            incarnation=fields[12],
            hyper=fields[13],
            weight=fields[14],
            meta=meta,
            payload=payload,
            descriptors=descriptors,
        )


def decode(message: bytes) -> Frame:
    """The frame in `message`; its meta and payload are views of it.

    Raises:
        FrameMalformed: too short, wrong magic, unknown kind, or a length that does not fit.
        FrameTooLarge: it announces more meta or payload than the limits.
        ProtocolMismatch: the magic is right and the version of the protocol is not.
    """
    if len(message) < HEADER_BYTES:
        raise FrameMalformed(f"a frame has at least {HEADER_BYTES} bytes, got {len(message)}")
    head = Header(message)
    start = HEADER_BYTES + head.padded_meta_bytes
    if len(message) != start + head.payload_bytes:
        raise FrameMalformed(
            f"a frame announces {start + head.payload_bytes} bytes in all and has {len(message)}"
        )
    view = memoryview(message)
    return head.frame(
        view[HEADER_BYTES : HEADER_BYTES + head.meta_bytes] if head.meta_bytes else _NONE,
        view[start:] if head.payload_bytes else _NONE,
    )


def _check(fields: tuple[int, ...]) -> Kind:
    magic, protocol, kind_number = fields[0], fields[1], fields[2]
    payload_bytes, meta_bytes = fields[15], fields[16]
    if magic != MAGIC:
        raise FrameMalformed(f"not a frame: magic {magic:#010x}, expected {MAGIC:#010x}")
    check_protocol(protocol)
    kind = _KINDS.get(kind_number)
    if kind is None:
        raise FrameMalformed(f"unknown kind of frame {kind_number}")
    if payload_bytes > MAX_PAYLOAD_BYTES or meta_bytes > MAX_META_BYTES:
        raise FrameTooLarge(
            f"a frame announces {payload_bytes} bytes of payload and {meta_bytes} of meta; "
            f"at most {MAX_PAYLOAD_BYTES} and {MAX_META_BYTES} are taken"
        )
    return kind


def check_protocol(theirs: int) -> None:
    """Refuses a peer of another version.

    Raises:
        ProtocolMismatch: naming both versions.
    """
    if theirs != PROTOCOL:
        raise ProtocolMismatch(
            f"the other end speaks protocol {theirs}, this one {PROTOCOL}: install the same version on both",
            theirs=theirs,
            ours=PROTOCOL,
        )
