"""Shares of epochs as messages: what workers say of them."""

from __future__ import annotations

from ps_server.coordinator.epochs.piece_usage import PieceMark
from ps_wire.errors import UsageError
from ps_wire.snapshot.json_fields import MAX_COUNT
from ps_wire.snapshot.saved_epoch import MAX_LOADERS
from ps_wire.v1 import coordinator_pb2 as pb


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


def mark_of(mark: pb.Mark) -> PieceMark:
    """How far a worker has come."""
    return PieceMark(
        step=mark.step,
        batches=mark.batches,
        samples=mark.samples,
        pace_batches=mark.pace_batches,
        pace_samples=mark.pace_samples,
    )
