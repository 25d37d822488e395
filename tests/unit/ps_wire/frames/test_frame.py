"""Frames: each byte of the header, and what is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ps_wire.errors import FrameMalformed, FrameTooLarge, ProtocolMismatch
from ps_wire.frames.frame import (
    HEADER_BYTES,
    MAGIC,
    MAX_META_BYTES,
    MAX_PAYLOAD_BYTES,
    PROTOCOL,
    Frame,
    Kind,
    check_protocol,
    decode,
    encode,
    header,
)

U8, U16 = st.integers(0, 2**8 - 1), st.integers(0, 2**16 - 1)
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
FRAMES = st.builds(
    Frame,
    kind=st.sampled_from(Kind),
    codec=U8,
    flags=U8,
    partition=U32,
    table=U16,
    rank=U16,
    step=U64,
    version=U64,
    worker=U32,
    generation=U32,
    incarnation=U64,
    hyper=U32,
    weight=st.floats(width=32, allow_nan=False),
    meta=st.binary(max_size=50),
    payload=st.binary(max_size=50),
    terms=st.just(()),
    descriptors=st.just(()),
)
# Where each field lies: offset and format, little endian.
LAYOUT = {
    "kind": (5, "B"),
    "codec": (6, "B"),
    "flags": (7, "B"),
    "partition": (8, "I"),
    "table": (12, "H"),
    "rank": (14, "H"),
    "step": (16, "Q"),
    "version": (24, "Q"),
    "worker": (32, "I"),
    "generation": (36, "I"),
    "incarnation": (40, "Q"),
    "hyper": (48, "I"),
    "weight": (52, "f"),
}
PUSH = Frame(kind=Kind.PUSH, meta=b"abc", payload=b"0123")


def patched(message: bytes, offset: int, code: str, value: int) -> bytes:
    changed = bytearray(message)
    struct.pack_into("<" + code, changed, offset, value)
    return bytes(changed)


@given(FRAMES)
@example(Frame(kind=Kind.ACK))
@example(PUSH)
def test_what_is_encoded_is_decoded(frame):
    """decode(encode(frame)) == frame, and encoding it again gives the same bytes."""
    message = encode(frame)
    assert decode(message) == frame
    assert encode(decode(message)) == message


@given(FRAMES)
def test_each_field_lies_at_its_offset(frame):
    """The header is 64 bytes, little endian, magic and protocol first, lengths last."""
    message = encode(frame)
    assert message[:5] == b"PSv1" + bytes([PROTOCOL])
    for name, (offset, code) in LAYOUT.items():
        assert struct.unpack_from("<" + code, message, offset)[0] == getattr(frame, name), name
    assert struct.unpack_from("<II", message, 56) == (len(frame.payload), len(frame.meta))
    assert message[:HEADER_BYTES] == header(frame, len(frame.payload))


@given(FRAMES)
def test_the_payload_is_aligned_behind_the_padded_meta(frame):
    """Meta follows the header, then zeros to a multiple of 16, then the payload, and nothing else."""
    message = encode(frame)
    start = HEADER_BYTES + -(-len(frame.meta) // 16) * 16
    assert message[HEADER_BYTES:start] == frame.meta.ljust(start - HEADER_BYTES, b"\0")
    assert message[start:] == frame.payload


def test_decoding_copies_no_payload():
    """Meta and payload are views of the message."""
    message = encode(PUSH)
    frame = decode(message)
    assert frame.meta.obj is frame.payload.obj is message


@pytest.mark.parametrize("length", range(len(encode(PUSH))))
def test_a_truncated_frame_is_refused(length):
    """Whatever is cut off, the rest is no frame."""
    with pytest.raises(FrameMalformed, match=rf"{length}\b"):
        decode(encode(PUSH)[:length])


def test_a_frame_with_bytes_behind_it_is_refused():
    """A message is one frame; the lengths say where it ends."""
    with pytest.raises(FrameMalformed, match="announces 84 bytes in all and has 85"):
        decode(encode(PUSH) + b"\0")


def test_a_wrong_magic_is_refused():
    """What does not begin with the magic is no frame, whatever version it claims."""
    with pytest.raises(FrameMalformed, match=f"magic 0x00000001, expected {MAGIC:#010x}"):
        decode(patched(patched(encode(PUSH), 0, "I", 1), 4, "B", 9))


@pytest.mark.parametrize("theirs", [0, PROTOCOL + 1, 255])
def test_another_protocol_is_refused_naming_both(theirs):
    """The version is checked before anything that it may have changed, and the error names both."""
    message = patched(patched(encode(PUSH), 4, "B", theirs), 5, "B", 200)
    with pytest.raises(ProtocolMismatch, match=f"protocol {theirs}, this one {PROTOCOL}") as refused:
        decode(message)
    assert refused.value.facts == {"theirs": theirs, "ours": PROTOCOL}


def test_the_same_protocol_is_taken():
    """Equal versions fit."""
    assert check_protocol(PROTOCOL) is None


@pytest.mark.parametrize("number", [0, max(Kind) + 1, 255])
def test_an_unknown_kind_is_refused(number):
    """A kind that is not in the list is named in the error."""
    with pytest.raises(FrameMalformed, match=f"unknown kind of frame {number}"):
        decode(patched(encode(PUSH), 5, "B", number))


def test_kinds_keep_their_numbers():
    """Numbers on the wire are never reused."""
    names = ["HELLO", "HYPER", "LOAD", "PUSH", "ABSTAIN", "PULL", "PULLED", "ACK", "REFUSE", "SHARE", "FREE"]
    assert {kind.name: kind.value for kind in Kind} == {name: at for at, name in enumerate(names, 1)}


@pytest.mark.parametrize(("offset", "limit"), [(56, MAX_PAYLOAD_BYTES), (60, MAX_META_BYTES)])
def test_an_announced_length_beyond_the_limit_is_too_large(offset, limit):
    """A length is judged before memory is touched; one at the limit only has to be true."""
    for length in (limit + 1, 2**32 - 1):
        with pytest.raises(FrameTooLarge, match=str(length)):
            decode(patched(encode(PUSH), offset, "I", length))
    with pytest.raises(FrameMalformed):
        decode(patched(encode(PUSH), offset, "I", limit))


def test_the_largest_frame_is_taken():
    """Payload and meta may be as long as the limits."""
    frame = Frame(kind=Kind.PUSH, meta=bytes(MAX_META_BYTES), payload=bytes(MAX_PAYLOAD_BYTES))
    decoded = decode(encode(frame))
    assert (len(decoded.meta), len(decoded.payload)) == (MAX_META_BYTES, MAX_PAYLOAD_BYTES)


@given(
    FRAMES,
    st.lists(st.tuples(st.integers(0, 200), U8), max_size=8),
    st.integers(0, 40),
    st.binary(max_size=9),
)
def test_no_bytes_raise_anything_but_the_named_errors(frame, changes, cut, tail):
    """Whatever a peer sends, `decode` returns a frame that says the same or raises one of its errors."""
    message = bytearray(encode(frame))
    for place, value in changes:
        message[place % len(message)] = value
    sent = bytes(message[: len(message) - cut]) + tail
    try:
        decoded = decode(sent)
    except (FrameMalformed, FrameTooLarge, ProtocolMismatch):
        return
    assert len(encode(decoded)) == len(sent)


@given(st.binary(max_size=200))
def test_random_bytes_are_no_frame(data):
    """Bytes without the magic are malformed."""
    with pytest.raises(FrameMalformed):
        decode(data)
