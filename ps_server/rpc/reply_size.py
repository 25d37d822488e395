"""Replies about all workers, cut to what a message may have: no job keeps people from all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ps_wire.access.channel import MAX_MESSAGE_BYTES

MAX_ENTRIES_BYTES = MAX_MESSAGE_BYTES * 3 // 4


class Entry(Protocol):
    """A job, or a table of one, with a repeated field `workers`."""

    @property
    def workers(self) -> Any:
        """By number."""
        ...

    def ByteSize(self) -> int:  # noqa: N802 - protobuf's name
        """Of the message."""
        ...

    def ClearField(self, name: Any) -> None:  # noqa: N802
        """Empties it."""
        ...


def cut(entries: Sequence[Entry]) -> None:
    """Leaves the last workers out of those entries that are over an equal share, where all are too large."""
    if sum(entry.ByteSize() for entry in entries) <= MAX_ENTRIES_BYTES:
        return
    share = MAX_ENTRIES_BYTES // len(entries)
    for entry in entries:
        while (size := entry.ByteSize()) > share and (count := len(entry.workers)):
            first = list(entry.workers[: count * share // size])
            entry.ClearField("workers")
            entry.workers.extend(first)
