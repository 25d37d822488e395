"""Bounds of what workers say of shares of epochs."""

from __future__ import annotations

from ps_wire.errors import UsageError
from ps_wire.frames.messages import mark_from_proto
from ps_wire.snapshot.json_fields import MAX_COUNT, MAX_SAMPLES
from ps_wire.snapshot.saved_epoch import MAX_LOADERS
from ps_wire.spec.epochs import PieceMark
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


def check_samples(number: int) -> int:
    """A number of samples; else raises UsageError."""
    if number > MAX_SAMPLES:
        raise UsageError(f"{number} samples: at most {MAX_SAMPLES} of an epoch are counted")
    return number


def check_mark(message: pb.Mark) -> PieceMark:
    """How far a worker has come; else raises UsageError."""
    if message.step > MAX_COUNT:
        raise UsageError(f"step {message.step}: steps are numbered up to {MAX_COUNT}")
    check_samples(message.samples), check_samples(message.pace)
    return mark_from_proto(message)
