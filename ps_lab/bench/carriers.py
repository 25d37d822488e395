"""The carriers that a bench can ask for, and which of them carries."""

from __future__ import annotations

from ps_wire.errors import UsageError

CARRIERS = ("auto", "shm", "uds", "tcp", "grpc")
BUILT_CARRIERS = frozenset({"grpc"})  # the others are asked of the workers, which cannot give them yet


def check_carrier(asked: str) -> str:
    """The carrier that was asked for.

    Raises:
        UsageError: there is none of that name.
    """
    if asked not in CARRIERS:
        raise UsageError(f"--carrier must be one of {', '.join(CARRIERS)}, got {asked!r}")
    return asked


def carrier_of(asked: str) -> str:
    """What carries the data: the one that was asked for, if it is built."""
    return asked if asked in BUILT_CARRIERS else "grpc"


def carrier_text(asked: str) -> str:
    """What carries, and what was asked for if that is another; for people."""
    carrier = carrier_of(asked)
    return carrier if asked == carrier else f"{carrier} (asked for: {asked})"
