"""Bounds of what workers say of shares of epochs."""

from __future__ import annotations

from ps_wire.errors import UsageError
from ps_wire.snapshot.json_fields import MAX_COUNT
from ps_wire.snapshot.saved_epoch import MAX_LOADERS


def check_loader(number: int) -> int:
    """The number of a loader, if a worker may have so many; else raises UsageError."""
    if number >= MAX_LOADERS:
        raise UsageError(f"a worker has made over {MAX_LOADERS} loaders: make one, and iterate it again")
    return number


def check_epoch(number: int) -> int:
    """The number of an epoch; else raises UsageError."""
    if number > MAX_COUNT:
        raise UsageError(f"epoch {number}: epochs are numbered from 0 to {MAX_COUNT}")
    return number
