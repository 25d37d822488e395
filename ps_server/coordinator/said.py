"""Bounds of what workers and readers say over their streams, where it comes in: it is kept, and passed on."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message

from ps_wire.errors import FrameMalformed, FrameTooLarge
from ps_wire.snapshot.json_fields import MAX_COUNT
from ps_wire.spec.table import MAX_TABLES

MAX_SAID_BYTES = 1 << 20  # of a message, but for a table: metrics that are left out are read before that


def check_size(message: Message) -> None:
    """Refuses a message that is larger than anything but a table.

    Raises:
        FrameTooLarge: it is.
    """
    if (size := message.ByteSize()) > MAX_SAID_BYTES:
        raise FrameTooLarge(
            f"a message of {size} bytes: over this stream one has at most {MAX_SAID_BYTES}, but for tables"
        )


def steps_by_table(said: Mapping[int, int]) -> dict[int, int]:
    """Table -> step, as a worker says where it is.

    Raises:
        FrameMalformed: no job has such tables, or no worker takes so many steps.
    """
    if len(said) > MAX_TABLES or max(said, default=0) >= MAX_TABLES:
        raise FrameMalformed(f"a worker says steps of its tables: there are at most {MAX_TABLES}")
    if max(said.values(), default=0) > MAX_COUNT:
        raise FrameMalformed(f"a worker says that it is at step {max(said.values())}: at most {MAX_COUNT}")
    return dict(said)
