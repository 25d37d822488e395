"""Large messages of peers, parsed piece by piece: in between the event loop does what else there is to do.

Protobuf parses in one call, under the interpreter's lock, so a thread would not help: 16 MiB of entries of
two bytes each took 1.4 s. A message is the sum of its fields: merging a few at a time gives the same. Of all
who have one job's token one message is parsed at a time, and so of all who have the service's, or none.

It must not know what messages mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from ps_server.rpc import auth as gatekeeper
from ps_wire.errors import FrameTooLarge

PIECE_BYTES = 32 << 10  # of entries of two bytes each: 10 ms, most of them to find where they end
AT_ONCE_BYTES = 256 << 10  # 20 ms of such entries
MAX_FIELDS = 1 << 20  # of one message, those of its parts not counted: a table has some 130,000 at most
MAX_PACKED_BYTES = 1 << 20  # of a list of numbers, which cannot be cut: 15 ms; stages of a table have 131,072
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}

_turns: WeakValueDictionary[str | None, asyncio.Lock] = WeakValueDictionary()


async def parse(deserialize: Callable[[bytes], Message], data: bytes) -> Message:
    """The message; of one that is large, piece by piece.

    Raises:
        NO_MESSAGE: it is no such message.
        FrameTooLarge: it has more fields, or more numbers, than any may have.
    """
    if len(data) <= AT_ONCE_BYTES:
        return deserialize(data)
    caller = gatekeeper.bound_to()
    turn = _turns.get(caller)
    if turn is None:
        turn = _turns[caller] = asyncio.Lock()
    async with turn:
        message = deserialize(b"")
        await _merge(message, data, 0, len(data))
    return message


async def _merge(message: Message, data: bytes, begin: int, end: int) -> None:
    """Adds the fields that lie in `data[begin:end]`; those of a part that is large one by one."""
    at, count = begin, 0
    while at < end:
        start = at
        number, kind, value, at = _field(data, at, end)
        count += 1
        if count > MAX_FIELDS:
            raise FrameTooLarge(f"a message of more than {MAX_FIELDS} fields")
        part = _part(message, number, at - value) if kind == _BYTES and at - value > PIECE_BYTES else None
        if part is not None:
            message.MergeFromString(data[begin:start])
            await _merge(part, data, value, at)
            begin = at
        elif at - begin >= PIECE_BYTES:
            message.MergeFromString(data[begin:at])
            begin = at
            await asyncio.sleep(0)
    message.MergeFromString(data[begin:end])


def _part(message: Message, number: int, nbytes: int) -> Message | None:
    """The message inside of this one that such a field is merged into; None: it is none."""
    field = message.DESCRIPTOR.fields_by_number.get(number)
    if field is None:
        return None
    if field.message_type is None:
        if field.cpp_type != FieldDescriptor.CPPTYPE_STRING and nbytes > MAX_PACKED_BYTES:
            raise FrameTooLarge(f"a list of numbers of {nbytes} bytes: at most {MAX_PACKED_BYTES} are taken")
        return None
    if field.message_type.GetOptions().map_entry:
        return None
    inside = getattr(message, field.name)
    if not isinstance(inside, Message):
        return inside.add()  # type: ignore[no-any-return]  # a list
    inside.SetInParent()
    return inside


def _field(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """A field's number and kind, and where its value begins and ends."""
    tag, value = _varint(data, at, end)
    kind = tag & 7
    if kind == _VARINT:
        _, after = _varint(data, value, end)
    elif kind == _BYTES:
        size, value = _varint(data, value, end)
        after = value + size
    elif kind in _FIXED_BYTES:
        after = value + _FIXED_BYTES[kind]
    else:
        raise DecodeError(f"a field of kind {kind}")
    if after > end:
        raise DecodeError("a field that ends behind its message")
    return tag >> 3, kind, value, after


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise DecodeError("a number that does not end")
